"""The strongest edges by source token: the token whose attention is shared."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_edges import EdgeAttribution
from dcinterp.figures.base.grid import grid
from dcinterp.figures.base.style import visible
from dcinterp.mechanism.branches import NAMES
from dcinterp.mechanism.edge_scores import MEASURING
from dcinterp.mechanism.objective import UNITS
from dcinterp.support.errors import UserError
from dcinterp.support.ranges import Count

RESULT = "EdgeAttribution"
KIND = "sources"


def plot(result: EdgeAttribution, *, theme: str = "light", k: Count = 12, shared: bool = True) -> go.Figure:
    """Rows are edges, the strongest on top; columns are source tokens.

    Where the scores are measured effects, a gradient says how an edge's attention to each token shares in them: these
    predictions need not add up to the score, which stands behind the edge.

    Args:
        result: the scores.
        theme: "light" or "dark".
        k: how many edges, at least one.
        shared: only edges between different heads, if there are any.

    Raises:
        UserError: every score is 0, as where a prompt has one token only.
    """
    edges = result.top(k, shared=shared) or result.top(k, shared=False)
    if not edges:
        raise UserError("No edge has a score other than 0 here, so that there is nothing to show by source token.")
    rows = [
        result.by_source[result.layers.index(e.layer), NAMES.index(e.branch), e.head_from, e.head_to].tolist()
        for e in edges
    ]
    measured = result.method in MEASURING
    labels = [f"{e.label}: {e.score:+z.2f}" if measured else e.label for e in edges]
    return grid(
        rows,
        x=[visible(token) for token in result.sources],
        y=labels,
        x_title="source token",
        y_title="edge and its measured effect" if measured else "edge",
        quantity=f"{'predicted contribution' if measured else 'contribution'} ({UNITS[result.objective]})",
        theme=theme,
    )
