"""Path patching as bars: what each edge into one receiver restores, or loses."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.intervention.patch_path import PathPatching
from dcinterp.figures.base.style import THEMES, finish
from dcinterp.figures.circuits.circuit_bars import colour_of
from dcinterp.figures.intervention.stream_patching_grid import QUANTITY
from dcinterp.support.ranges import Count

RESULT = "PathPatching"
KIND = ""


def plot(result: PathPatching, *, theme: str = "light", k: Count = 20) -> go.Figure:
    """One bar per edge, the largest on top; 1 is the whole difference between the two prompts.

    Args:
        result: the effects.
        theme: "light" or "dark".
        k: how many edges.
    """
    top = result.table().head(k)
    figure = go.Figure(
        go.Bar(
            x=top["effect"].tolist(),
            y=top["edge"].tolist(),
            orientation="h",
            marker_color=[
                colour_of(name.rpartition("(")[2].rstrip(")") if "(" in name else "stream", theme)
                for name in top["edge"]
            ],
            hovertemplate="%{y}<br>%{x:.3f}<extra></extra>",
        )
    )
    figure.add_vline(x=0, line_width=1, line_color=THEMES[theme].muted)
    names = top["edge"].tolist()
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1], title="edge")
    figure.update_xaxes(title=QUANTITY[result.direction])
    return finish(figure, theme, height=120 + 22 * len(names))


def kind_of(edge: str) -> str:
    """The kind in the name of an edge: "stream", or for a composition edge its stage and branch."""
    return edge.rpartition("(")[2].rstrip(")") if edge.endswith(")") else "stream"
