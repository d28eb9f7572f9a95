"""One head's attention over the prompt, before and after composition."""

from __future__ import annotations

import plotly.graph_objects as go
import torch

from dcinterp.analysis.attention.attention_rows import AttentionRows
from dcinterp.figures.base.grid import grid
from dcinterp.figures.base.style import visible
from dcinterp.support.errors import require_number

RESULT = "AttentionRows"
KIND = ""


def plot(
    result: AttentionRows, *, theme: str = "light", head: int = 0, head_from: int | None = None, key: int | None = None
) -> go.Figure:
    """Rows are attention vectors, columns the tokens of the prompt; a single row if nothing is composed.

    Args:
        result: the rows of all heads.
        theme: "light" or "dark".
        head: the head to show before and after.
        head_from: another head, shown before composition.
        key: a token to outline in the row after composition.
    """
    for each in (head, head_from):
        if each is not None:
            require_number("head", each, len(result.composed))
    if key is not None:
        require_number("key", key, result.query + 1)
    rows = [(f"head {head} before", result.weights[head]), (f"head {head} after", result.composed[head])]
    if torch.equal(result.weights, result.composed):
        # Without composition the two rows are the same.
        rows = [(f"head {head}", result.composed[head])]
    if head_from is not None and head_from != head:
        rows.insert(0, (f"head {head_from} before", result.weights[head_from]))
    tokens = [visible(token) for token in result.tokens[: result.query + 1]]
    # Columns are positions: equal words must not fall together.
    return grid(
        torch.stack([row for _, row in rows]).numpy(),
        x=tokens,
        y=[name for name, _ in rows],
        x_title="token",
        y_title="",
        quantity="attention",
        theme=theme,
        selected=(len(rows) - 1, key) if key is not None else None,
        height=150 + 44 * len(rows),
    )
