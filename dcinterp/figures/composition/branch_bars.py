"""The composed attention of every head at one pair of positions, stacked by branch."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.composition.compose_breakdown import TERMS, ComposeBreakdown
from dcinterp.figures.base.style import (
    BRANCH_COLOURS,
    BRANCH_NAMES,
    OF_ALL_TOKENS,
    THEMES,
    axis,
    column_band,
    common_layout,
    zero_line,
)
from dcinterp.mechanism.branches import BRANCHES
from dcinterp.support.errors import require_number

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
    if selected is not None:
        require_number("head", selected, len(heads))
    colours = THEMES[theme]
    quantity = "score" if result.stage == "pre" else "attention"
    own = OF_ALL_TOKENS if result.has_map_of_all_tokens else f"own {quantity}"
    names = BRANCH_NAMES | {BRANCHES["skip"].hook: own}
    bars = [
        go.Bar(
            x=heads,
            y=result.branches[term].tolist(),
            name=f"{names[term]} ({term})",
            marker={"color": BRANCH_COLOURS[term]},
            hovertemplate=f"head %{{x}}<br>{names[term]} %{{y:.3f}}<extra></extra>",
        )
        for term in TERMS
    ]
    sums = go.Scatter(
        x=heads,
        y=result.out.tolist(),
        mode="markers",
        name="composed (A')",
        marker={"symbol": "diamond", "size": 10, "color": colours.selected},
        hovertemplate="head %{x}<br>composed %{y:.3f}<extra></extra>",
    )
    layout = common_layout(theme, 360) | {
        "barmode": "relative",
        "bargap": 0.25,
        "xaxis": axis("head", type="category"),
        "yaxis": axis("attention score" if result.stage == "pre" else "attention weight"),
        "shapes": [zero_line(theme), *([] if selected is None else [column_band(selected, theme)])],
    }
    return go.Figure([*bars, sums], layout)
