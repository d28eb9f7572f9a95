"""Patching heads as a heatmap: what each head restores, or loses, by one of its parts."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.intervention.patch_heads import HeadPatching
from dcinterp.figures.base.layer_head_grid import layer_head_grid
from dcinterp.figures.intervention.stream_patching_grid import QUANTITY
from dcinterp.support.errors import require_known

RESULT = "HeadPatching"
KIND = ""


def plot(
    result: HeadPatching, *, theme: str = "light", site: str = "", selected: tuple[int, int] | None = None
) -> go.Figure:
    """Layers downwards, heads across; 1 is the whole difference between the two prompts.

    Args:
        result: the effects.
        theme: "light" or "dark".
        site: what was patched, such as "z" or "post.kp"; the first of the result without.
        selected: (layer, head) to outline.
    """
    site = site or result.sites[0]
    require_known("site", site, result.sites)
    effect = result.effect[result.sites.index(site)]
    # One scale for all sites, as of the stream.
    limit = max(1.0, float(result.effect.abs().max()))
    quantity = QUANTITY[result.direction]
    return layer_head_grid(effect, quantity=quantity, theme=theme, selected=selected, limit=limit, title=f"Site {site}")
