"""Patching the stream as a heatmap: what each layer and position restores, or loses."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.intervention.patch_stream import StreamPatching
from dcinterp.figures.base.grid import grid
from dcinterp.figures.base.style import visible
from dcinterp.support.errors import require_known

RESULT = "StreamPatching"
KIND = ""

QUANTITY = {"denoising": "share restored", "noising": "share lost"}


def plot(
    result: StreamPatching,
    *,
    theme: str = "light",
    site: str = "resid_pre",
    selected: tuple[int, int] | None = None,
) -> go.Figure:
    """Layers downwards, tokens across; 1 is the whole difference between the two prompts.

    Args:
        result: the effects.
        theme: "light" or "dark".
        site: "resid_pre", "attn_out" or "mlp_out".
        selected: (layer, position) to outline.
    """
    require_known("site", site, result.sites)
    effect = result.effect[result.sites.index(site)]
    names = result.labels("pos") or []
    return grid(
        effect.numpy(),
        x=[visible(name) for name in names],
        y=[str(layer) for layer in range(len(effect))],
        x_title="token",
        y_title="layer",
        quantity=QUANTITY[result.direction],
        theme=theme,
        # One scale for all sites; effects beyond the whole difference are rare and keep the strongest colour.
        limit=max(1.0, float(result.effect.abs().max())),
        selected=selected,
        height=120 + 46 * len(effect),
        title=f"Site {site}",
    )
