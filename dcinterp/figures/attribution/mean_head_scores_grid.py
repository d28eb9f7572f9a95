"""Head attribution averaged over a dataset, as a layer x head heatmap."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_heads_over import HeadAttributionSet
from dcinterp.figures.base.grid import grid

RESULT = "HeadAttributionSet"
KIND = ""


def plot(result: HeadAttributionSet, *, theme: str = "light", selected: tuple[int, int] | None = None) -> go.Figure:
    """Layers downwards, heads across; orange pushes towards the targets, blue away from them.

    Args:
        result: the scores.
        theme: "light" or "dark".
        selected: (layer, head) to outline.
    """
    layers, heads = result.mean.shape
    return grid(
        result.mean.numpy(),
        x=[str(head) for head in range(heads)],
        y=[str(layer) for layer in range(layers)],
        x_title="head",
        y_title="layer",
        quantity=f"mean contribution, n = {result.n} ({'logits' if result.objective == 'logit' else 'nats'})",
        theme=theme,
        selected=selected,
        numbers=result.mean.numel() <= 128,
        height=120 + 46 * layers,
    )
