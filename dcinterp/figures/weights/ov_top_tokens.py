"""The tokens that a head promotes for each word it reads."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.weights.ov_top_tokens import OVTopTokens
from dcinterp.figures.base.grid import grid, write_words
from dcinterp.figures.base.style import bare
from dcinterp.support.ranges import Count

RESULT = "OVTopTokens"
KIND = ""


def plot(result: OVTopTokens, *, theme: str = "light", shown: Count = 10) -> go.Figure:
    """Rows are source words, columns ranks; a cell names the promoted token, its colour is the logit.

    Args:
        result: the tokens.
        theme: "light" or "dark".
        shown: how many places.
    """
    places = min(shown, result.logit.shape[1])
    figure = grid(
        result.logit[:, :places].numpy(),
        x=[str(place + 1) for place in range(places)],
        y=[bare(word) for word in result.words],
        x_title="rank",
        y_title="source word",
        quantity="logit",
        theme=theme,
    )
    tokens = [[bare(token) for token in row[:places]] for row in result.top_tokens]
    return write_words(figure, tokens)
