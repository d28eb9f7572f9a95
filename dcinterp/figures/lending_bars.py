"""Which heads lend their attention to one head at one pair of positions, by the key's choice and by the query's."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.compose_breakdown import ComposeBreakdown
from dcinterp.figures.style import BRANCH_COLOURS, THEMES, finish

RESULT = "ComposeBreakdown"
KIND = "lending"


def plot(result: ComposeBreakdown, *, theme: str = "light", selected: int = 0) -> go.Figure:
    """One group of bars per lending head; a negative bar takes attention away.

    Args:
        result: the terms at the pair.
        theme: "light" or "dark".
        selected: the head that receives.
    """
    heads = [str(head) for head in range(len(result.a))]
    figure = go.Figure()
    for side, branch in (("key", "o_kp"), ("query", "o_qp")):
        figure.add_bar(
            x=heads,
            y=result.lent(side)[:, selected].tolist(),
            name=f"by the {side} token ({branch})",
            marker_color=BRANCH_COLOURS[branch],
            hovertemplate=f"head %{{x}} adds %{{y:.3f}} to head {selected}, by the {side} token<extra></extra>",
        )
    figure.add_hline(y=0, line_width=1, line_color=THEMES[theme].muted)
    figure.update_layout(barmode="relative", bargap=0.35)
    figure.update_xaxes(title="lending head", type="category")
    figure.update_yaxes(title=f"attention added to head {selected}")
    return finish(figure, theme, height=320)
