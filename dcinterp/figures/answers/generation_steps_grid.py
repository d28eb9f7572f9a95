"""Generation step by step as a heatmap: the most likely token of every depth at every step."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.answers.generation_steps import GenerationSteps
from dcinterp.figures.base.grid import grid, write_words
from dcinterp.figures.base.style import bare, visible

RESULT = "GenerationSteps"
KIND = ""


def plot(result: GenerationSteps, *, theme: str = "light", selected: tuple[int, int] | None = None) -> go.Figure:
    """The output on top, the embedding below, steps to the right; a cell names the most likely token there.

    Args:
        result: the steps.
        theme: "light" or "dark".
        selected: (row, step) to outline, rows counted from the top.
    """
    figure = grid(
        result.probability[..., 0].flip(0).numpy(),
        x=[f"{step}: {visible(token)}" for step, token in enumerate(result.written)],
        y=list(result.depths[::-1]),
        x_title="step and the token that was written",
        y_title="stream",
        quantity="probability of the most likely token",
        theme=theme,
        signed=False,
        limit=1.0,
        selected=selected,
        height=110 + 34 * len(result.depths),
    )
    words = [[bare(place[0]) for place in depth] for depth in result.top_tokens[::-1]]
    return write_words(figure, words)
