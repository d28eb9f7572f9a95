"""The logit lens as a heatmap: the most likely next token at every depth and position."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.answers.logit_lens import LogitLens
from dcinterp.figures.base.grid import grid, write_words
from dcinterp.figures.base.style import bare, visible
from dcinterp.support.errors import require_known

RESULT = "LogitLens"
KIND = ""

SHOWN = {
    "probability": "probability of the most likely token",
    "target_probability": "probability of the target",
    "logit_difference": "logit difference",
    "divergence": "divergence from the output (nats)",
}


def plot(
    result: LogitLens, *, theme: str = "light", which: str = "probability", selected: tuple[int, int] | None = None
) -> go.Figure:
    """The output on top, the embedding below; a cell names the most likely token, its colour is the number.

    Args:
        result: the lens.
        theme: "light" or "dark".
        which: the number: "probability" (of the most likely token), "target_probability", "logit_difference" or
            "divergence".
        selected: (row, position) to outline, rows counted from the top.
    """
    require_known("quantity of a logit lens", which, SHOWN)
    values = result.probability[..., 0] if which == "probability" else getattr(result, which)
    limits = {"limit": 1.0} if "probability" in which else {}
    figure = grid(
        values.flip(0).numpy(),
        x=[visible(token) for token in result.tokens],
        y=list(result.depths[::-1]),
        x_title="token",
        y_title="stream",
        quantity=SHOWN[which],
        theme=theme,
        signed=which == "logit_difference",
        selected=selected,
        height=110 + 34 * len(result.depths),
        **limits,  # type: ignore[arg-type]
    )
    words = [[bare(place[0]) for place in depth] for depth in result.top_tokens[::-1]]
    return write_words(figure, words)
