"""The composed attention of every head at one pair of positions, stacked by branch."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.compose_breakdown import TERMS, ComposeBreakdown
from dcinterp.figures.style import BRANCH_COLOURS, BRANCH_NAMES, THEMES, finish

RESULT = "ComposeBreakdown"
KIND = ""


def plot(result: ComposeBreakdown, *, theme: str = "light", selected: int | None = None) -> go.Figure:
    """Bars add up from zero, positive terms upwards and negative ones downwards; the diamond is their sum, A'.

    Args:
        result: the terms.
        theme: "light" or "dark".
        selected: a head to mark.
    """
    heads = [str(head) for head in range(len(result.a))]
    colours = THEMES[theme]
    figure = go.Figure()
    for term in TERMS:
        figure.add_bar(
            x=heads,
            y=result.branches[term].tolist(),
            name=f"{BRANCH_NAMES[term]} ({term})",
            marker_color=BRANCH_COLOURS[term],
            hovertemplate=f"head %{{x}}<br>{BRANCH_NAMES[term]} %{{y:.3f}}<extra></extra>",
        )
    figure.add_scatter(
        x=heads,
        y=result.out.tolist(),
        mode="markers",
        name="composed (A')",
        marker={"symbol": "diamond", "size": 10, "color": colours.selected},
        hovertemplate="head %{x}<br>composed %{y:.3f}<extra></extra>",
    )
    if selected is not None:
        figure.add_vrect(x0=selected - 0.47, x1=selected + 0.47, line_width=0, fillcolor=colours.muted, opacity=0.18)
    figure.add_hline(y=0, line_width=1, line_color=colours.muted)
    figure.update_layout(barmode="relative", bargap=0.25)
    figure.update_xaxes(title="head", type="category")
    figure.update_yaxes(title="attention score" if result.stage == "pre" else "attention weight")
    return finish(figure, theme, height=360)
