"""The loss of one or two models on files of text, by kind of token, with intervals over files."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.answers.text_loss import TextLoss
from dcinterp.figures.base.style import SERIES, finish, interval_bars, interval_note

RESULT = "TextLoss"
KIND = ""

SYMBOLS = ("circle", "diamond-open")


def plot(result: TextLoss, *, theme: str = "light") -> go.Figure:
    """A row for every kind of token, and a point with its interval for every model.

    Args:
        result: the losses.
        theme: "light" or "dark".
    """
    table = result.table()
    of = {model: table[table["model"] == model] for model in result.models}
    first = of[result.models[0]]
    rows = [f"{kind}, {count:,}" for kind, count in zip(first["kind"], first["tokens"], strict=True)]
    figure = go.Figure()
    for place, model in enumerate(result.models):
        figure.add_scatter(
            x=of[model]["nats"].tolist(),
            y=list(range(len(rows))),
            mode="markers",
            # Models stand beside each other in a row, and the figure's table has their row as it is.
            orientation="h",
            offsetgroup=str(place),
            name=model,
            text=rows,
            marker={"color": SERIES[place], "size": 10, "symbol": SYMBOLS[place], "line": {"width": 2}},
            error_x=interval_bars(of[model]["nats"], of[model]["low"], of[model]["high"], color=SERIES[place]),
            hovertemplate=f"{model}<br>%{{text}} tokens: %{{x:.3f}} nats<extra></extra>",
        )
    figure.update_layout(scattermode="group", scattergap=0.4)
    note = interval_note(table["low"], result.level)
    figure.update_xaxes(title=f"nats a token{note}{' over files' * bool(note)}", rangemode="tozero")
    figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=rows, range=[len(rows) - 0.5, -0.5])
    figure.update_yaxes(title="kind of token, how many")
    return finish(figure, theme, height=140 + 44 * len(rows))
