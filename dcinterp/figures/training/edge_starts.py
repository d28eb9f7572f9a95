"""Loss and effects of edges against steps of training, with where each starts: of one seed of an experiment."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.training.edge_starts import EdgeStarts, is_step
from dcinterp.figures.training.edges_in_training import curves_of_edges
from dcinterp.support.errors import UserError, nearest

RESULT = "EdgeStarts"
KIND = ""


def plot(
    result: EdgeStarts, *, theme: str = "light", seed: int | None = None, edges: int = 6, checkpoint: int | None = None
) -> go.Figure:
    """A line for each of the edges that matter most at the end, and a thick one of the loss; diamonds where they start.

    Args:
        result: the curves.
        theme: "light" or "dark".
        seed: which run; the first when None.
        edges: how many edges.
        checkpoint: number of a checkpoint to mark, as a slider gives it.
    """
    seed = result.seeds[0] if seed is None else seed
    if seed not in result.seeds:
        raise UserError(f"There is no seed {seed}; {nearest(str(seed), map(str, result.seeds))}")
    s = result.seeds.index(seed)
    starts = {result.main[s]: int(result.main_start[s])} if is_step(result.main_explained[s]) else {}
    loss_start = int(result.loss_start[s]) if is_step(result.loss_explained[s]) else None
    places = result.strongest(seed, edges)
    lines = {result.edges[place]: result.effect[s, :, place].tolist() for place in places}
    steps, loss = result.step.tolist(), result.loss[s].tolist()
    return curves_of_edges(steps, loss, loss_start, lines, starts, theme, checkpoint)
