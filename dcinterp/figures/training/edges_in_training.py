"""The loss of a run, and what its edges are worth, against steps of training, with where each starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from dcinterp.analysis.training.training_edges import TrainingEdges
from dcinterp.figures.base.style import SERIES, THEMES, edge_name, finish
from dcinterp.support.errors import require_number
from dcinterp.support.ranges import Count

RESULT = "TrainingEdges"
KIND = ""
SMALL = 0.1
"""Edges whose effects are below this share of the fall of the loss, flat beside it, get an axis of their own."""


def plot(result: TrainingEdges, *, theme: str = "light", edges: Count = 6, checkpoint: int | None = None) -> go.Figure:
    """A line for each of the edges that matter most at the end, and a thick one of the loss; diamonds where they start.

    An open diamond is the step of an edge that is not shown to raise the loss at the end, so that it has no start.

    Args:
        result: the effects.
        theme: "light" or "dark".
        edges: how many edges.
        checkpoint: number of a checkpoint to mark, as a slider gives it.
    """
    places = result.strongest(edges)
    lines = {result.edges[place]: result.effect[:, place].mean(-1).tolist() for place in places}
    starts = {result.edges[place]: int(result.start[place]) for place in places if result.explained[place] > 0}
    steps, loss = result.step.tolist(), result.loss.mean(-1).tolist()
    loss_start = result.loss_start if result.loss_explained > 0 else None
    figure = curves_of_edges(steps, loss, loss_start, lines, starts, theme, checkpoint)
    for place in places:
        if not result.has_start[place]:  # a curve may rise in one step to what is not shown to be above zero
            name = edge_name(result.edges[place])
            unsure = {
                "marker_symbol": "diamond-open",
                "name": f"step of {name}, not shown to matter",
                "hovertemplate": f"{name}: a step at %{{x:,}}, to an effect that is not shown<extra></extra>",
            }
            figure.update_traces(unsure, selector={"name": f"start of {name}"})
    return figure


def curves_of_edges(
    steps: Sequence[int],
    loss: Sequence[float],
    loss_start: int | None,
    edges: Mapping[str, Sequence[float]],
    starts: Mapping[str, int],
    theme: str,
    checkpoint: int | None,
) -> go.Figure:
    """The figure of a loss and of edges by the names that interventions give them.

    Args:
        steps: of the checkpoints.
        loss: at each of them.
        loss_start: the step at which the loss starts to be low, if it has one.
        edges: the effect at each checkpoint.
        starts: the step at which the edge starts to matter, of those that have one.
        theme: "light" or "dark".
        checkpoint: number of a checkpoint to mark.

    Raises:
        UserError: there is no such checkpoint.
    """
    if checkpoint is not None:
        require_number("checkpoint", checkpoint, len(steps))
    colour, figure = THEMES[theme].text, go.Figure()
    _line(figure, steps, loss, "loss", loss_start, colour, {"width": 4})
    for number, (edge, values) in enumerate(edges.items()):
        stage = edge.split(".")[1]
        style = {"width": 2, "dash": "dash" if stage == "post" else "solid"}
        _line(figure, steps, values, edge_name(edge), starts.get(edge), SERIES[number % len(SERIES)], style)
    if checkpoint is not None:
        at = {"type": "line", "x0": steps[checkpoint], "x1": steps[checkpoint], "y0": 0, "y1": 1, "yref": "paper"}
        figure.add_shape(**at, line={"width": 1, "dash": "dot", "color": colour})
    figure.update_xaxes(title="step", rangemode="tozero")
    if max((abs(value) for values in edges.values() for value in values), default=1) < SMALL * (max(loss) - min(loss)):
        figure.update_traces({"yaxis": "y2"}, selector=lambda trace: not trace.name.endswith("loss"))
        above, below = {"domain": [0.5, 1], "title": "loss (nats)"}, {"domain": [0, 0.42], "title": "rise (nats)"}
        figure.update_layout(xaxis={"anchor": "y2"}, yaxis=above, yaxis2=below)
    else:
        figure.update_yaxes(title="nats: the loss, and its rise without the edge")
    return finish(figure, theme, height=420)


def _line(
    figure: go.Figure,
    steps: Sequence[int],
    values: Sequence[float],
    name: str,
    start: int | None,
    colour: str,
    style: Mapping[str, object],
) -> None:
    figure.add_scatter(
        x=list(steps),
        y=list(values),
        name=name,
        mode="lines",
        line={"color": colour, **style},
        legendgroup=name,
        hovertemplate=f"{name}: %{{y:.3f}} at step %{{x:,}}<extra></extra>",
    )
    if start is not None:
        figure.add_scatter(
            x=[start],
            y=[values[list(steps).index(start)]],
            name=f"start of {name}",
            mode="markers",
            marker={"color": colour, "size": 11, "symbol": "diamond"},
            legendgroup=name,
            showlegend=False,
            hovertemplate=f"{name} starts at step %{{x:,}}<extra></extra>",
        )
