"""The edges of a circuit with the largest scores, with their intervals."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.circuits.circuit import CircuitScores
from dcinterp.figures.base.style import BEYOND_COLOURS, BRANCH_COLOURS, THEMES, finish, interval_bars
from dcinterp.mechanism.branches import BRANCHES
from dcinterp.mechanism.circuit_graph import AROUND
from dcinterp.support.ranges import Count

RESULT = "CircuitScores"
KIND = ""

STREAM, STATIC = "#6b7a90", "#5c5c5c"
"""Of edges of the stream, which is no branch (slate, as in the drawing), and of the static map, which elsewhere counts
with the skip."""


def colour_of(kind: str, theme: str) -> str:
    """The colour of a kind of edge: its branch's, or that of a convolution over the pairs around."""
    if kind.endswith(AROUND):
        return BEYOND_COLOURS[theme]
    branch = BRANCHES.get(kind.split()[-1])
    return BRANCH_COLOURS[branch.hook] if branch is not None else STREAM if kind == "stream" else STATIC


def plot(result: CircuitScores, *, theme: str = "light", k: Count = 20) -> go.Figure:
    """One bar per edge, the largest on top, in the colour of its branch.

    Args:
        result: the scores.
        theme: "light" or "dark".
        k: how many edges.
    """
    top = result.table().head(k)
    figure = go.Figure()
    for kind in dict.fromkeys(top["kind"]):
        some = top[top["kind"] == kind]
        figure.add_bar(
            x=some["mean"].tolist(),
            y=some["edge"].tolist(),
            orientation="h",
            name=kind,
            marker_color=colour_of(kind, theme),
            error_x=interval_bars(some["mean"], some["low"], some["high"], color=THEMES[theme].muted),
            hovertemplate="%{y}<br>score %{x:.3f}<extra></extra>",
        )
    figure.update_layout(barmode="overlay")
    figure.add_vline(x=0, line_width=1, line_color=THEMES[theme].muted)
    names = top["edge"].tolist()
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1], title="edge")
    figure.update_xaxes(title="score (logits)")
    return finish(figure, theme, height=140 + 22 * len(names))
