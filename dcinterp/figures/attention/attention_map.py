"""One head's attention matrix, before or after composition."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from dcinterp.analysis.attention.attention_patterns import MATRICES, AttentionPatterns
from dcinterp.figures.base.grid import grid
from dcinterp.figures.base.style import visible
from dcinterp.support.errors import UserError, nearest

RESULT = "AttentionPatterns"
KIND = ""

QUANTITIES = {
    "scores": "score before composition",
    "composed_scores": "score after composition",
    "weights": "weight before composition",
    "composed": "weight after composition",
    "change": "weight added after the softmax",
}
SAME = {"pre": ("scores", "composed_scores"), "post": ("weights", "composed")}
"""By stage, the two matrices that are one where a model does not compose at it."""


def plot(
    result: AttentionPatterns,
    *,
    theme: str = "light",
    head: int = 0,
    which: str = "composed",
    selected: tuple[int, int] | None = None,
) -> go.Figure:
    """Rows are queries, columns keys; what a query may not see stays empty.

    Args:
        result: the matrices.
        theme: "light" or "dark".
        head: which head.
        which: one of the four matrices, or "change" for composed - weights: what composition after the softmax adds.
        selected: (query, key) to outline.
    """
    if which not in QUANTITIES:
        raise UserError(f"There is no matrix {which!r}; {nearest(which, QUANTITIES)}")
    if not 0 <= head < len(result.composed):
        raise UserError(f"There is no head {head}; this model has heads 0..{len(result.composed) - 1}.")
    quantity = QUANTITIES[which]
    for stage, (before, after) in SAME.items():
        if stage not in result.stages and which in (before, after):
            which, quantity = before, f"attention {before.removesuffix('s')}"
    matrix = getattr(result, which) if which in MATRICES else result.composed - result.weights
    values = matrix[head].numpy().copy()
    values[np.triu_indices(len(values), 1)] = np.nan
    if not result.scores.isnan().all():
        values[result.scores[head].isnan().numpy()] = np.nan
    tokens = [visible(token) for token in result.tokens]
    signed = which != "weights"
    return grid(
        values,
        x=tokens,
        y=tokens,
        x_title="key",
        y_title="query",
        quantity=quantity,
        theme=theme,
        signed=signed,
        limit=None if signed else 1.0,
        selected=selected,
        height=130 + max(18, min(30, 640 // len(tokens))) * len(tokens),
        title=f"Layer {result.layer}, head {head}",
    )
