"""The strongest edges as a flow: heads that attend, heads that borrow this attention, and the answer."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_edges import BeyondScore, EdgeAttribution, EdgeScore
from dcinterp.figures.base.flow import Link, flow
from dcinterp.figures.base.style import BEYOND_COLOURS, BRANCH_COLOURS, edge_branch_name, see_through, visible
from dcinterp.mechanism.branches import BRANCHES
from dcinterp.support.ranges import Count

RESULT = "EdgeAttribution"
KIND = "flow"


def plot(result: EdgeAttribution, *, theme: str = "light", k: Count = 16, shared: bool = True) -> go.Figure:
    """Left the head that computed the attention, middle the head that borrows (or reads) it, right the answer.

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

    # What takes its own attention alone borrows none.
    borrow = {_to(edge) for edge in edges if isinstance(edge, BeyondScore) or edge.head_from != edge.head_to}
    links: list[Link] = []
    onward: dict[tuple[str, bool], float] = {}
    for edge in edges:
        if isinstance(edge, BeyondScore):
            colour, name = see_through(BEYOND_COLOURS[theme]), edge.term
        else:
            hook = BRANCHES[edge.branch].hook
            colour = see_through(BRANCH_COLOURS[hook])
            name = edge_branch_name(edge.branch, edge.head_from, edge.head_to)
        head_from = f"L{edge.layer}H{edge.head_from} attends"
        head_to = f"{_to(edge)} {'borrows' if _to(edge) in borrow else 'reads'}"
        links.append((node(head_from), node(head_to), abs(edge.score), colour, f"{name}: {edge.score:+z.3f}"))
        onward[head_to, edge.score > 0] = onward.get((head_to, edge.score > 0), 0.0) + abs(edge.score)
    grey = see_through("#8c8c8c", 0.35)
    for (head_to, speaks_for), size in onward.items():
        end = f"{'for' if speaks_for else 'against'} {visible(result.target)}"
        links.append((node(head_to), node(end), size, grey, f"{size if speaks_for else -size:+z.3f}"))
    column = [2 if name.startswith(("for ", "against ")) else int(not name.endswith(" attends")) for name in names]
    return flow(names, column, links, theme)


def _to(edge: EdgeScore | BeyondScore) -> str:
    """The head whose values an edge goes to."""
    layer = edge.layer_to if isinstance(edge, BeyondScore) else edge.layer
    return f"L{layer}H{edge.head_to}"
