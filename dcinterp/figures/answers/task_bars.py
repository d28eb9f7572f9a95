"""Accuracy per QK pattern (or another grouping) with intervals, beside two baselines."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.answers.task_accuracy import TaskAccuracy
from dcinterp.figures.base.style import THEMES, axis, common_layout, interval_bars

RESULT = "TaskAccuracy"
KIND = "bars"

BASELINES = {
    "fact_unif": ("baseline: random fact, right relation", "x", 7),
    "odd_one_out": ("baseline: ignores the question", "diamond-open", 14),
}


def plot(result: TaskAccuracy, *, theme: str = "light", by: str = "pattern") -> go.Figure:
    """One bar per group with its 95 % interval, and two baselines on the same tasks.

    Args:
        result: the scores.
        theme: "light" or "dark".
        by: a grouping of `TaskAccuracy.table`.
    """
    table = result.table(by)
    names = [str(name) for name in table[by]]
    bars = go.Bar(
        x=names,
        y=table["accuracy"].tolist(),
        name="the model",
        marker={"color": THEMES[theme].muted, "opacity": 0.55},
        error_y=interval_bars(table["accuracy"], table["low"], table["high"], color=THEMES[theme].text),
        hovertemplate="%{x}: %{y:.1%}<extra></extra>",
    )
    marks = [
        go.Scatter(
            x=names,
            y=table[baseline].tolist(),
            mode="markers",
            name=name,
            marker={"symbol": symbol, "size": size, "color": THEMES[theme].text, "line": {"width": 2}},
            hovertemplate=f"{name}: %{{y:.1%}}<extra></extra>",
        )
        for baseline, (name, symbol, size) in BASELINES.items()
    ]
    layout = common_layout(theme, 360) | {
        "xaxis": axis({"pattern": "QK pattern"}.get(by, by), type="category"),
        "yaxis": axis("accuracy", range=[0, 1.05], tickformat=".0%"),
    }
    return go.Figure([bars, *marks], layout)
