"""Accuracy against the number of shots, one line per QK pattern."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.answers.task_accuracy import TaskAccuracy
from dcinterp.figures.base.style import SERIES, THEMES, axis, common_layout

RESULT = "TaskAccuracy"
KIND = "shots"


def plot(result: TaskAccuracy, *, theme: str = "light") -> go.Figure:
    """Lines per pattern, and a thick one over all.

    Args:
        result: the scores.
        theme: "light" or "dark".
    """
    shots = list(result.shots)
    lines = []
    for number, pattern in enumerate([*dict.fromkeys(result.patterns), "all"]):
        whole = pattern == "all"
        chosen = [i for i, name in enumerate(result.patterns) if whole or name == pattern]
        lines.append(
            go.Scatter(
                x=shots,
                y=result.right[chosen].mean((0, 1)).tolist(),
                name=pattern,
                mode="lines+markers",
                line={
                    "color": THEMES[theme].text if whole else SERIES[number % len(SERIES)],
                    "width": 4 if whole else 2,
                },
                hovertemplate=f"{pattern}: %{{y:.1%}} with %{{x}} shots<extra></extra>",
            )
        )
    layout = common_layout(theme, 360) | {
        "xaxis": axis("shots before the question (K)", tickvals=shots),
        "yaxis": axis("accuracy", range=[0, 1.05], tickformat=".0%"),
    }
    return go.Figure(lines, layout)
