"""Accuracy per QK pattern against the tokens that the model had read."""

from __future__ import annotations

from itertools import cycle

import plotly.graph_objects as go

from dcinterp.analysis.training.training_curves import TrainingCurves
from dcinterp.figures.base.style import SERIES, THEMES, finish
from dcinterp.figures.training.loss_lines import points_of
from dcinterp.support.errors import UserError

RESULT = "TrainingCurves"
KIND = ""


def plot(result: TrainingCurves, *, theme: str = "light", examples: int | None = None) -> go.Figure:
    """One line per pattern, and a thick one over all.

    Args:
        result: the curves.
        theme: "light" or "dark".
        examples: rows of how many examples; the longest measured when None.
    """
    examples = max(result.examples) if examples is None else examples
    if examples not in result.examples:
        raise UserError(f"This run measured rows of {', '.join(map(str, result.examples))} examples, not {examples}.")
    column = result.examples.index(examples)
    figure = go.Figure()
    colours = cycle(SERIES)
    for number, pattern in enumerate(result.patterns):
        whole = pattern == "all"
        figure.add_scatter(
            x=result.tokens_read.tolist(),
            y=result.accuracy[:, column, number].tolist(),
            name=pattern,
            mode=points_of(len(result.step)),
            line={"color": THEMES[theme].text if whole else next(colours), "width": 4 if whole else 2},
            # A mark at the edge of the frame is drawn whole.
            cliponaxis=False,
            hovertemplate=f"{pattern}: %{{y:.1%}} after %{{x:,}} tokens<extra></extra>",
        )
    figure.update_xaxes(title="tokens read", rangemode="tozero")
    figure.update_yaxes(
        title=f"right answers, {examples} {'example' if examples == 1 else 'examples'} per row",
        range=[0, 1.02],
        tickformat=".0%",
    )
    return finish(figure, theme, height=380)
