"""Patching heads by position as a heatmap: every head in a row, tokens across."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.intervention.patch_head_positions import HeadPositionPatching
from dcinterp.figures.base.grid import grid
from dcinterp.figures.base.style import visible
from dcinterp.figures.intervention.stream_patching_grid import QUANTITY

RESULT = "HeadPositionPatching"
KIND = ""


def plot(result: HeadPositionPatching, *, theme: str = "light", selected: tuple[int, int] | None = None) -> go.Figure:
    """Heads downwards, layer by layer; 1 is the whole difference between the two prompts.

    Args:
        result: the effects.
        theme: "light" or "dark".
        selected: (row, position) to outline.
    """
    layers, heads, _ = result.share.shape
    return grid(
        result.effect.flatten(0, 1).numpy(),
        x=[visible(name) for name in result.token_pairs()],
        y=[f"L{layer}H{head}" for layer in range(layers) for head in range(heads)],
        x_title="token",
        y_title="head",
        quantity=QUANTITY[result.direction],
        theme=theme,
        limit=max(1.0, float(result.effect.abs().max())),
        selected=selected,
        height=120 + 22 * layers * heads,
    )
