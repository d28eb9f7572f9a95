"""How much the attention of every head changed under an intervention."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.intervention.intervene import InterventionEffect
from dcinterp.figures.base.layer_head_grid import layer_head_grid

RESULT = "InterventionEffect"
KIND = "attention"


def plot(result: InterventionEffect, *, theme: str = "light", selected: tuple[int, int] | None = None) -> go.Figure:
    """Layers downwards, heads across: mean over queries of the sum over keys of |change of composed attention|.

    Args:
        result: the effect.
        theme: "light" or "dark".
        selected: (layer, head) to outline.
    """
    return layer_head_grid(
        result.attention_change, quantity="change in attention", theme=theme, selected=selected, signed=False
    )
