"""Accuracy as a grid of QK pattern x transformation."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from dcinterp.analysis.answers.task_accuracy import TaskAccuracy
from dcinterp.figures.base.grid import grid

RESULT = "TaskAccuracy"
KIND = ""


def plot(result: TaskAccuracy, *, theme: str = "light", selected: tuple[int, int] | None = None) -> go.Figure:
    """Rows are QK patterns, columns transformations; combinations without a task stay empty.

    Args:
        result: the scores.
        theme: "light" or "dark".
        selected: (row, column) to outline.
    """
    patterns, transformations = (list(dict.fromkeys(names)) for names in (result.patterns, result.transformations))
    values = np.full((len(patterns), len(transformations)), np.nan)
    for row, pattern in enumerate(patterns):
        for column, transformation in enumerate(transformations):
            here = [
                i
                for i, both in enumerate(zip(result.patterns, result.transformations, strict=True))
                if both == (pattern, transformation)
            ]
            if here:
                values[row, column] = float(result.right[here].mean())
    return grid(
        values,
        x=transformations,
        y=patterns,
        x_title="transformation",
        y_title="QK pattern",
        quantity="accuracy",
        theme=theme,
        signed=False,
        limit=1.0,
        numbers=True,
        selected=selected,
        height=140 + 46 * len(patterns),
    )
