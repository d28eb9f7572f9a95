"""The largest causes of a shared attention entry, beside what their ablation does."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.composition.composition_causes import QUANTITIES, CompositionCauses
from dcinterp.figures.base.style import BRANCH_COLOURS, THEMES, finish, visible
from dcinterp.support.errors import UserError
from dcinterp.support.ranges import Count

RESULT = "CompositionCauses"
KIND = ""


def plot(
    result: CompositionCauses,
    *,
    theme: str = "light",
    quantity: str = "weight",
    by: str = "component",
    most: Count = 12,
) -> go.Figure:
    """One bar per component or token, the largest causes first; the diamond is the component's ablation.

    Args:
        result: the causes.
        theme: "light" or "dark".
        quantity: "weight", "score, by the query" or "score, by the key".
        by: "component" or "token".
        most: how many bars to show.
    """
    if quantity not in QUANTITIES or by not in ("component", "token"):
        raise UserError(f"Causes are those of {', '.join(map(repr, QUANTITIES))}, by 'component' or 'token'.")
    number, colours = QUANTITIES.index(quantity), THEMES[theme]
    causes = (result.causes if by == "component" else result.by_token)[number]
    order = causes.abs().argsort(descending=True, stable=True)[:most].tolist()
    labels = result.components if by == "component" else [f"{visible(t)} ({at})" for at, t in enumerate(result.tokens)]
    names = [labels[at] for at in order]
    figure = go.Figure()
    figure.add_bar(
        x=names,
        y=[float(causes[at]) for at in order],
        name="cause",
        marker_color=BRANCH_COLOURS["o_qp"],
        hovertemplate="%{x}<br>cause %{y:.4f}<extra></extra>",
    )
    if by == "component":
        figure.add_scatter(
            x=names,
            y=[float(result.ablation[number, at]) for at in order],
            mode="markers",
            name="ablated alone",
            marker={"symbol": "diamond", "size": 9, "color": colours.selected},
            hovertemplate="%{x}<br>ablated alone %{y:.4f}<extra></extra>",
        )
    figure.add_hline(y=0, line_width=1, line_color=colours.muted)
    figure.update_xaxes(title=by, type="category")
    figure.update_yaxes(title=quantity)
    return finish(figure, theme, height=380)
