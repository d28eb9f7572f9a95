"""Which heads share their attention with one head at one pair of positions, through each projection."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.composition.compose_breakdown import ComposeBreakdown
from dcinterp.figures.base.style import BRANCH_COLOURS, axis, common_layout, zero_line
from dcinterp.mechanism.branches import BRANCHES
from dcinterp.support.errors import require_number

RESULT = "ComposeBreakdown"
KIND = "sharing"


def plot(result: ComposeBreakdown, *, theme: str = "light", selected: int = 0) -> go.Figure:
    """One bar per head that shares its attention; a negative bar takes attention away.

    Args:
        result: the terms at the pair.
        theme: "light" or "dark".
        selected: the head that borrows.
    """
    require_number("head", selected, len(result.a))
    heads = [str(head) for head in range(len(result.a))]
    quantity = "score" if result.stage == "pre" else "attention"
    bars = [
        go.Bar(
            x=heads,
            y=result.shared(side)[:, selected].tolist(),
            name=f"through the {side} projection ({branch})",
            marker={"color": BRANCH_COLOURS[branch]},
            hovertemplate=f"head %{{x}} adds %{{y:.3f}} to head {selected}, {side} projection<extra></extra>",
        )
        for side, branch in ((BRANCHES[name].side, BRANCHES[name].hook) for name in ("kp", "qp"))
    ]
    layout = common_layout(theme, 320) | {
        "barmode": "relative",
        "bargap": 0.35,
        "xaxis": axis("from head", type="category"),
        "yaxis": axis(f"{quantity} added to head {selected}"),
        "shapes": [zero_line(theme)],
    }
    return go.Figure(bars, layout)
