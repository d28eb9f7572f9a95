"""The dynamic weights at one pair of positions: from which heads w_1 gathers and to which w_2 shares."""

from __future__ import annotations

import plotly.graph_objects as go
import torch

from dcinterp.analysis.composition.compose_breakdown import ComposeBreakdown
from dcinterp.figures.base.grid import grid
from dcinterp.support.errors import require_known

RESULT = "ComposeBreakdown"
KIND = "weights"


def plot(
    result: ComposeBreakdown, *, theme: str = "light", side: str = "key", selected: int | None = None
) -> go.Figure:
    """Rows are w_1 and w_2 of every rank and the gate, columns heads; each row is scaled to its own largest weight.

    Args:
        result: the terms at the pair.
        theme: "light" or "dark".
        side: "key" or "query", whose weights.
        selected: a head whose sharing weights to outline.
    """
    require_known("side", side, ("key", "query"))
    letter = side[0]
    w1, w2, gate = (getattr(result, f"w_{letter}{name}") for name in ("1", "2", "g"))
    ranks = range(w1.shape[0])
    rows = {f"gathers, rank {r}": w1[r] for r in ranks} | {f"shares, rank {r}": w2[r] for r in ranks} | {"gate": gate}
    values = torch.stack(list(rows.values()))
    # w_1 is normalised to size 1 and w_2 is not: on one scale the smaller would be invisible.
    scaled = values / values.abs().amax(dim=1, keepdim=True).clamp(min=1e-9)
    figure = grid(
        scaled.numpy(),
        x=[str(head) for head in range(w1.shape[1])],
        y=list(rows),
        x_title="head",
        y_title="",
        quantity="share of the row's largest",
        theme=theme,
        limit=1.0,
        selected=(len(ranks), selected, len(ranks), 1) if selected is not None else None,
        height=330,
        title=f"Weights of the {side} token",
    )
    figure.data[0].update(text=[[f"{v:z.2f}" for v in row] for row in values.tolist()], texttemplate="%{text}")
    return figure
