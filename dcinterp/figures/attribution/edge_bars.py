"""The strongest edges of composition, with the effects of ablating them."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_edges import EdgeAttribution
from dcinterp.figures.base.style import BRANCH_COLOURS, BRANCH_NAMES, THEMES, finish
from dcinterp.mechanism.branches import BRANCHES

RESULT = "EdgeAttribution"
KIND = ""


def plot(result: EdgeAttribution, *, theme: str = "light", k: int = 16, shared: bool = True) -> go.Figure:
    """One bar per edge, the strongest on top, in the colour of its branch; the diamond is the measured effect.

    Args:
        result: the scores.
        theme: "light" or "dark".
        k: how many edges.
        shared: only edges between different heads, if there are any.
    """
    # Without composition no head shares its attention.
    edges = result.top(k, shared=shared) or result.top(k, shared=False)
    names = [edge.label for edge in edges]
    figure = go.Figure()
    for branch in dict.fromkeys(edge.branch for edge in edges):
        tap = BRANCHES[branch].hook
        mine = [i for i, edge in enumerate(edges) if edge.branch == branch]
        figure.add_bar(
            x=[edges[i].score for i in mine],
            y=[names[i] for i in mine],
            orientation="h",
            name=f"{BRANCH_NAMES[tap]} ({branch})",
            marker_color=BRANCH_COLOURS[tap],
            hovertemplate="%{y}<br>score %{x:.3f}<extra></extra>",
        )
    measured = dict(zip(result.checked, result.measured.tolist(), strict=True))
    effects = [(name, measured.get(edge.intervention.unit)) for name, edge in zip(names, edges, strict=True)]
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
    figure.update_xaxes(title="contribution (logits)")
    return finish(figure, theme, height=120 + 24 * len(edges))
