"""The strongest edges of composition, with the effects of ablating them."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_edges import BeyondScore, EdgeAttribution, EdgeScore
from dcinterp.figures.base.style import BEYOND_COLOURS, BRANCH_COLOURS, THEMES, edge_branch_name, finish
from dcinterp.mechanism.branches import BRANCHES
from dcinterp.mechanism.objective import UNITS
from dcinterp.support.ranges import Count

RESULT = "EdgeAttribution"
KIND = ""


def plot(result: EdgeAttribution, *, theme: str = "light", k: Count = 16, shared: bool = True) -> go.Figure:
    """One bar per edge, the strongest on top, in the colour of its branch; the diamond is the measured effect.

    What is taken from other pairs of tokens or from the previous layer (`top_beyond`) is brown.

    Args:
        result: the scores.
        theme: "light" or "dark".
        k: how many edges.
        shared: only edges between different heads, if there are any.
    """
    edges = result.strongest(k, shared=shared)
    names = [edge.label for edge in edges]
    figure = go.Figure()
    kinds = [_kind(edge, theme) for edge in edges]
    for name, colour in dict.fromkeys(kinds):
        mine = [i for i, kind in enumerate(kinds) if kind == (name, colour)]
        figure.add_bar(
            x=[edges[i].score for i in mine],
            y=[names[i] for i in mine],
            orientation="h",
            name=name,
            marker_color=colour,
            hovertemplate="%{y}<br>score %{x:.3f}<extra></extra>",
        )
    effects = [(name, result.measured_of(edge)) for name, edge in zip(names, edges, strict=True)]
    found = [(name, effect) for name, effect in effects if effect is not None]
    if found:
        figure.add_scatter(
            x=[effect for _, effect in found],
            y=[name for name, _ in found],
            mode="markers",
            orientation="h",
            name="measured by ablation",
            marker={"symbol": "diamond", "size": 10, "color": THEMES[theme].selected},
            hovertemplate="%{y}<br>effect of ablation %{x:.3f}<extra></extra>",
        )
    figure.update_layout(barmode="overlay")
    figure.add_vline(x=0, line_width=1, line_color=THEMES[theme].muted)
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1], title="edge")
    # Diamonds make Plotly leave room for half of their size in rows, which is much where there are many.
    figure.update_yaxes(range=[-0.6, len(names) - 0.4])
    figure.update_xaxes(title=f"contribution ({UNITS[result.objective]})")
    return finish(figure, theme, height=120 + 24 * len(edges))


def _kind(edge: EdgeScore | BeyondScore, theme: str) -> tuple[str, str]:
    """The name and the colour of an edge's bars."""
    if isinstance(edge, BeyondScore):
        return "other pairs or the previous layer", BEYOND_COLOURS[theme]
    tap = BRANCHES[edge.branch].hook
    return f"{edge_branch_name(edge.branch, edge.head_from, edge.head_to)} ({edge.branch})", BRANCH_COLOURS[tap]
