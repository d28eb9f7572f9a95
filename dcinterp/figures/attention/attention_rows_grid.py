"""All heads' attention from one position, over the tokens."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attention.attention_rows import AttentionRows
from dcinterp.figures.base.grid import grid
from dcinterp.figures.base.style import visible
from dcinterp.support.errors import UserError, require_number

RESULT = "AttentionRows"
KIND = "heads"


def plot(
    result: AttentionRows, *, theme: str = "light", which: str = "composed", selected: int | None = None
) -> go.Figure:
    """Rows are heads, columns the tokens that they attend to.

    Args:
        result: the rows of all heads.
        theme: "light" or "dark".
        which: "composed", or "weights" for before composition.
        selected: a head whose strongest token to outline.
    """
    if which not in ("weights", "composed"):
        raise UserError(f"There are no rows {which!r}; choose weights or composed.")
    rows = getattr(result, which)
    if selected is not None:
        require_number("head", selected, len(rows))
    mixed = not result.weights.equal(result.composed)
    signed = which == "composed" and mixed
    most = int(rows[selected].abs().argmax()) if selected is not None else None
    return grid(
        rows.numpy(),
        x=[visible(token) for token in result.tokens[: result.query + 1]],
        y=[str(head) for head in range(len(rows))],
        x_title="key",
        y_title="head",
        quantity=f"weight {'after' if signed else 'before'} composition" if mixed else "attention weight",
        theme=theme,
        signed=signed,
        limit=None if signed else 1.0,
        selected=(selected, most) if selected is not None and most is not None else None,
        height=130 + 30 * len(rows),
    )
