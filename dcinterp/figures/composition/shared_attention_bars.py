"""Which heads lend their attention to one head at one pair of positions, by the key's choice and by the query's."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.composition.compose_breakdown import ComposeBreakdown
from dcinterp.figures.base.style import BRANCH_COLOURS, axis, common_layout, zero_line
from dcinterp.mechanism.branches import BRANCHES

RESULT = "ComposeBreakdown"
KIND = "sharing"


def plot(result: ComposeBreakdown, *, theme: str = "light", selected: int = 0) -> go.Figure:
    """One group of bars per lending head; a negative bar takes attention away.

    Args:
        result: the terms at the pair.
        theme: "light" or "dark".
        selected: the head that receives.
    """
    heads = [str(head) for head in range(len(result.a))]
    what = "score" if result.stage == "pre" else "attention"
    bars = [
        go.Bar(
            x=heads,
            y=result.shared(side)[:, selected].tolist(),
            name=f"by the {side} token ({branch})",
            marker={"color": BRANCH_COLOURS[branch]},
            hovertemplate=f"head %{{x}} adds %{{y:.3f}} to head {selected}, by the {side} token<extra></extra>",
        )
        for side, branch in ((BRANCHES[name].side, BRANCHES[name].hook) for name in ("kp", "qp"))
    ]
    layout = common_layout(theme, 320) | {
        "barmode": "relative",
        "bargap": 0.35,
        "xaxis": axis("lending head", type="category"),
        "yaxis": axis(f"{what} added to head {selected}"),
        "shapes": [zero_line(theme)],
    }
    return go.Figure(bars, layout)
