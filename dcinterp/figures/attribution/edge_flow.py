"""The strongest edges as a flow: heads that attend, heads that borrow this attention, and the answer."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_edges import EdgeAttribution
from dcinterp.figures.base.flow import Link, flow
from dcinterp.figures.base.style import BRANCH_COLOURS, BRANCH_NAMES, see_through
from dcinterp.mechanism.branches import BRANCHES

RESULT = "EdgeAttribution"
KIND = "flow"


def plot(result: EdgeAttribution, *, theme: str = "light", k: int = 16, shared: bool = True) -> go.Figure:
    """Left the head that computed the attention, middle the head that borrows it, right the answer.

    The width of a band is the size of the edge's score, its colour that of the branch; negative scores flow to the
    node "against" the answer.

    Args:
        result: the scores.
        theme: "light" or "dark".
        k: how many edges.
        shared: only edges between different heads, if there are any.
    """
    edges = result.top(k, shared=shared) or result.top(k, shared=False)
    names: list[str] = []

    def node(name: str) -> int:
        if name not in names:
            names.append(name)
        return names.index(name)

    links: list[Link] = []
    onward: dict[tuple[str, bool], float] = {}
    for edge in edges:
        head_from, head_to = f"L{edge.layer}H{edge.head_from} attends", f"L{edge.layer}H{edge.head_to} borrows"
        branch = BRANCHES[edge.branch].hook
        label = f"{BRANCH_NAMES[branch]}: {edge.score:+.3f}"
        links.append((node(head_from), node(head_to), abs(edge.score), see_through(BRANCH_COLOURS[branch]), label))
        onward[head_to, edge.score > 0] = onward.get((head_to, edge.score > 0), 0.0) + abs(edge.score)
    grey = see_through("#8c8c8c", 0.35)
    for (head_to, speaks_for), size in onward.items():
        end = f"for {result.target}" if speaks_for else f"against {result.target}"
        links.append((node(head_to), node(end), size, grey, f"{size if speaks_for else -size:+.3f}"))
    column = [2 if name.startswith(("for ", "against ")) else int(name.endswith(" borrows")) for name in names]
    return flow(names, column, links, theme)
