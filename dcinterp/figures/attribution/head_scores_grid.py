"""Head attribution as a layer x head heatmap."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_heads import HeadAttribution
from dcinterp.figures.base.layer_head_grid import layer_head_grid
from dcinterp.mechanism.objective import UNITS

RESULT = "HeadAttribution"
KIND = ""


def plot(result: HeadAttribution, *, theme: str = "light", selected: tuple[int, int] | None = None) -> go.Figure:
    """Layers downwards, heads across; orange pushes towards the target, blue away from it.

    Args:
        result: the scores.
        theme: "light" or "dark".
        selected: (layer, head) to outline.
    """
    return layer_head_grid(
        result.scores, quantity=f"contribution ({UNITS[result.objective]})", theme=theme, selected=selected
    )
