"""Patching heads, all sites at once: the strongest head of every site and layer."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.intervention.patch_heads import HeadPatching
from dcinterp.figures.base.grid import grid
from dcinterp.figures.intervention.stream_patching_grid import QUANTITY

RESULT = "HeadPatching"
KIND = "sites"


def plot(result: HeadPatching, *, theme: str = "light", selected: tuple[int, int] | None = None) -> go.Figure:
    """Sites downwards, all heads of all layers across.

    Args:
        result: the effects.
        theme: "light" or "dark".
        selected: (site, layer * heads + head) to outline.
    """
    sites, layers, heads = result.share.shape
    return grid(
        result.effect.reshape(sites, layers * heads).numpy(),
        x=[f"L{layer}H{head}" for layer in range(layers) for head in range(heads)],
        y=list(result.sites),
        x_title="head",
        y_title="site",
        quantity=QUANTITY[result.direction],
        theme=theme,
        selected=selected,
        height=120 + 24 * sites,
    )
