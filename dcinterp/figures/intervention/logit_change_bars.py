"""The most likely tokens before and after an intervention."""

from __future__ import annotations

import plotly.graph_objects as go
import torch

from dcinterp.analysis.intervention.intervene import InterventionEffect
from dcinterp.figures.base.style import THEMES, finish, visible_apart
from dcinterp.support.ranges import Count

RESULT = "InterventionEffect"
KIND = ""


def plot(result: InterventionEffect, *, theme: str = "light", k: Count = 10) -> go.Figure:
    """Two marks per token, open before and filled after, joined by a line; the most likely token before on top.

    Args:
        result: the effect.
        theme: "light" or "dark".
        k: how many tokens: the answer and its foil, then the most likely ones of the two runs in turn.
    """
    ranks = [
        p.argsort(descending=True, stable=True).argsort() for p in (result.probability_before, result.probability_after)
    ]
    first = [0 if token in (result.target, result.foil) else 1 for token in result.top_tokens]
    order = sorted(range(len(first)), key=lambda i: (first[i], *sorted(int(rank[i]) for rank in ranks)))
    chosen = torch.tensor(order[:k])
    chosen = chosen[result.logit_before[chosen].argsort(descending=True, stable=True)]
    # Rows are numbers with the tokens as their names, so that equal tokens do not fall together.
    names, rows = visible_apart([result.top_tokens[i] for i in chosen.tolist()]), list(range(len(chosen)))
    before, after = result.logit_before[chosen].tolist(), result.logit_after[chosen].tolist()
    colours, figure = THEMES[theme], go.Figure()
    ends = [x for x0, x1 in zip(before, after, strict=True) for x in (x0, x1, None)]
    places = [y for row in rows for y in (row, row, None)]
    line = {"color": colours.muted, "width": 2}
    figure.add_scatter(x=ends, y=places, mode="lines", line=line, hoverinfo="skip", showlegend=False)
    for values, label, symbol, colour in (
        (before, "before", "circle-open", colours.text),
        (after, "after", "circle", THEMES[theme].text),
    ):
        figure.add_scatter(
            x=values,
            y=rows,
            text=names,
            mode="markers",
            orientation="h",
            name=label,
            marker={"symbol": symbol, "size": 11, "color": colour, "line": {"width": 2, "color": colour}},
            hovertemplate=f"%{{text}}<br>{label} %{{x:.2f}}<extra></extra>",
        )
    figure.update_yaxes(tickvals=rows, ticktext=names, range=[len(rows) - 0.5, -0.5], title="token")
    figure.update_xaxes(title="logit")
    return finish(figure, theme, height=110 + 26 * len(names))
