"""All heads at once: a small attention matrix of every head, layers downwards, before and after composition."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from dcinterp.analysis.attention.attention_thumbnails import AttentionThumbnails
from dcinterp.figures.base.grid import grid
from dcinterp.support.errors import UserError

RESULT = "AttentionThumbnails"
KIND = ""

SHOWN = {"both": ("weights", "composed"), "weights": ("weights",), "composed": ("composed",)}
WORDS = {"weights": "before", "composed": "after"}


def plot(result: AttentionThumbnails, *, theme: str = "light", which: str = "both") -> go.Figure:
    """One matrix a head: queries downwards, keys to the right; what a query may not see stays empty.

    Args:
        result: the matrices.
        theme: "light" or "dark".
        which: "weights" (before composition), "composed" (after it) or "both", one row of heads below the other.
    """
    if which not in SHOWN:
        raise UserError(f"There is no {which!r} of attention; choose both, weights or composed.")
    kinds = SHOWN[which] if result.composes else ("composed",)
    layers, heads, size, _ = result.composed.shape
    rows = [(layer, kind) for layer in range(layers) for kind in kinds]
    step = size + max(1, size // 12)
    tile = np.full((len(rows) * step, heads * step), np.nan)
    hidden = np.triu_indices(size, 1)
    for number, (layer, kind) in enumerate(rows):
        for head in range(heads):
            own = getattr(result, kind)[layer, head].numpy().copy()
            own[hidden] = np.nan
            tile[number * step : number * step + size, head * step : head * step + size] = own
    beyond = bool(np.nanmax(np.abs(tile)) > 1)  # one large weight would leave all others without colour
    names = [f"layer {layer}" + (f" {WORDS[kind]}" if result.composes else "") for layer, kind in rows]
    figure = grid(
        tile,
        x=[str(number // step) for number in range(heads * step)],
        y=[names[number // step] for number in range(len(rows) * step)],
        x_title="head",
        y_title="",
        quantity="weight (beyond ±1 the same colour)" if beyond else "weight",
        theme=theme,
        limit=1.0,
        height=90 + min(900, len(rows) * 130),
    )
    middle = [number * step + size / 2 for number in range(max(heads, len(rows)))]
    # A head is `step` rows and columns, which have names of their own.
    figure.update_traces(meta={"step": step, "size": size, "x": "key", "y": "query"})
    figure.update_xaxes(tickvals=middle[:heads], ticktext=[str(head) for head in range(heads)])
    return figure.update_yaxes(tickvals=middle[: len(rows)], ticktext=names)
