"""The strongest edges as a flow: heads that attend, heads that borrow this attention, and the answer."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_edges import BeyondScore, EdgeAttribution
from dcinterp.figures.base.flow import Link, flow
from dcinterp.figures.base.style import BEYOND_COLOUR, BRANCH_COLOURS, edge_branch_name, see_through, visible
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
    edges = result.strongest(k, shared=shared)
    names: list[str] = []

    def node(name: str) -> int:
        if name not in names:
            names.append(name)
        return names.index(name)

    links: list[Link] = []
    onward: dict[tuple[str, bool], float] = {}
    for edge in edges:
        if isinstance(edge, BeyondScore):
            layer_to, colour, name = edge.layer_to, see_through(BEYOND_COLOUR), edge.term
        else:
            hook = BRANCHES[edge.branch].hook
            layer_to, colour = edge.layer, see_through(BRANCH_COLOURS[hook])
            name = edge_branch_name(edge.branch, edge.head_from, edge.head_to)
        head_from, head_to = f"L{edge.layer}H{edge.head_from} attends", f"L{layer_to}H{edge.head_to} borrows"
        links.append((node(head_from), node(head_to), abs(edge.score), colour, f"{name}: {edge.score:+.3f}"))
        onward[head_to, edge.score > 0] = onward.get((head_to, edge.score > 0), 0.0) + abs(edge.score)
    grey = see_through("#8c8c8c", 0.35)
    for (head_to, speaks_for), size in onward.items():
        end = f"{'for' if speaks_for else 'against'} {visible(result.target)}"
        links.append((node(head_to), node(end), size, grey, f"{size if speaks_for else -size:+.3f}"))
    column = [2 if name.startswith(("for ", "against ")) else int(name.endswith(" borrows")) for name in names]
    return flow(names, column, links, theme)
