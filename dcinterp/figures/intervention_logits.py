"""The most likely tokens before and after an intervention."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.intervention_effect import InterventionEffect
from dcinterp.figures.style import THEMES, finish

RESULT = "InterventionEffect"
KIND = ""


def plot(result: InterventionEffect, *, theme: str = "light", k: int = 10) -> go.Figure:
    """Two marks a token, open before and filled after, joined by a line; the most likely token on top.

    Args:
        result: the effect.
        theme: "light" or "dark".
        k: how many tokens, those that are likely in either run first.
    """
    chance = result.probability_before.maximum(result.probability_after)
    chosen = chance.argsort(descending=True, stable=True)[:k]
    chosen = chosen[result.logit_before[chosen].argsort(descending=True, stable=True)]
    names = [result.top_tokens[i] for i in chosen.tolist()]
    before, after = result.logit_before[chosen].tolist(), result.logit_after[chosen].tolist()
    colours, figure = THEMES[theme], go.Figure()
    for name, x0, x1 in zip(names, before, after, strict=True):
        figure.add_shape(type="line", x0=x0, x1=x1, y0=name, y1=name, line={"color": colours.muted, "width": 2})
    for values, label, symbol, colour in (
        (before, "before", "circle-open", colours.text),
        (after, "after", "circle", "#cc6633"),
    ):
        figure.add_scatter(
            x=values,
            y=names,
            mode="markers",
            orientation="h",
            name=label,
            marker={"symbol": symbol, "size": 11, "color": colour, "line": {"width": 2}},
            hovertemplate=f"%{{y}}<br>{label} %{{x:.2f}}<extra></extra>",
        )
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1], title="token")
    figure.update_xaxes(title="logit")
    return finish(figure, theme, height=110 + 26 * len(names))
