"""Head attribution as a layer x head heatmap."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_heads import HeadAttribution
from dcinterp.figures.base.grid import grid

RESULT = "HeadAttribution"
KIND = ""


def plot(result: HeadAttribution, *, theme: str = "light", selected: tuple[int, int] | None = None) -> go.Figure:
    """Layers downwards, heads across; orange pushes towards the target, blue away from it.

    Args:
        result: the scores.
        theme: "light" or "dark".
        selected: (layer, head) to outline.
    """
    layers, heads = result.scores.shape
    return grid(
        result.scores.numpy(),
        x=[str(head) for head in range(heads)],
        y=[str(layer) for layer in range(layers)],
        x_title="head",
        y_title="layer",
        quantity="contribution (logits)",
        theme=theme,
        selected=selected,
        numbers=result.scores.numel() <= 128,
        height=120 + 46 * layers,
    )
