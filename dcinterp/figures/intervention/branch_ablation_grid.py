"""The change of accuracy without each part of the composition, by QK pattern."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.intervention.branch_ablation import BranchAblation
from dcinterp.figures.base.grid import grid

RESULT = "BranchAblation"
KIND = ""


def plot(result: BranchAblation, *, theme: str = "light") -> go.Figure:
    """Rows are parts, columns patterns; blue is worse, a star marks an interval that excludes zero; below it, in small,
    the change with zero in the part's place.

    Args:
        result: the accuracies.
        theme: "light" or "dark".
    """
    change = 100 * result.change[1:]
    figure = grid(
        change.numpy(),
        x=list(result.patterns),
        y=[f"without {part}" if result.kind == "zero" else f"{part}: {result.kind}" for part in result.parts[1:]],
        x_title="QK pattern",
        y_title="",
        quantity="change in accuracy (percentage points)",
        theme=theme,
        height=150 + (34 if result.zero is None else 44) * len(change),
    )
    outside = (result.change_low[1:] > 0) | (result.change_high[1:] < 0)
    zero = [["" for _ in row] for row in change]
    if result.zero is not None:
        zero = [
            [f"<br><sup>zero {value:+z.1f}</sup>" for value in row] for row in (100 * result.zero.change[1:]).tolist()
        ]
    text = [
        [f"{value:+z.1f}{'*' if star else ''}{beside}" for value, star, beside in zip(*row, strict=True)]
        for row in zip(change.tolist(), outside.tolist(), zero, strict=True)
    ]
    figure.data[0].update(text=text, texttemplate="%{text}", textfont={"size": 11})
    return figure
