"""How much the attention of every head changed under an intervention."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.intervention.intervene import InterventionEffect
from dcinterp.figures.base.grid import grid

RESULT = "InterventionEffect"
KIND = "attention"


def plot(result: InterventionEffect, *, theme: str = "light", selected: tuple[int, int] | None = None) -> go.Figure:
    """Layers downwards, heads across: mean over queries of the sum over keys of |change of composed attention|.

    Args:
        result: the effect.
        theme: "light" or "dark".
        selected: (layer, head) to outline.
    """
    layers, heads = result.attention_change.shape
    return grid(
        result.attention_change.numpy(),
        x=[str(head) for head in range(heads)],
        y=[str(layer) for layer in range(layers)],
        x_title="head",
        y_title="layer",
        quantity="change in attention",
        theme=theme,
        signed=False,
        selected=selected,
        numbers=result.attention_change.numel() <= 128,
        height=120 + 46 * layers,
    )
