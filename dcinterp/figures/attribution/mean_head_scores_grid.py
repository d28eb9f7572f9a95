"""Head attribution averaged over a dataset, as a layer x head heatmap."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_heads_over import HeadAttributionSet
from dcinterp.figures.base.layer_head_grid import layer_head_grid
from dcinterp.mechanism.objective import UNITS

RESULT = "HeadAttributionSet"
KIND = ""


def plot(result: HeadAttributionSet, *, theme: str = "light", selected: tuple[int, int] | None = None) -> go.Figure:
    """Layers downwards, heads across; orange pushes towards the targets, blue away from them.

    Args:
        result: the scores.
        theme: "light" or "dark".
        selected: (layer, head) to outline.
    """
    unit = UNITS[result.objective]
    quantity = f"mean contribution, n = {result.n} ({unit})"
    return layer_head_grid(result.mean, quantity=quantity, theme=theme, selected=selected)
