"""The edges of largest mean over a dataset, with intervals, the control and the effects of ablating them."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_edges_over import EdgeAttributionSet
from dcinterp.figures.base.style import CONTROLS, THEMES, edge_kind, edge_name, finish, interval_bars
from dcinterp.mechanism.objective import UNITS
from dcinterp.support.ranges import Count

RESULT = "EdgeAttributionSet"
KIND = ""


def plot(result: EdgeAttributionSet, *, theme: str = "light", k: Count = 16, shared: bool = True) -> go.Figure:
    """One bar per edge, the strongest on top, with its interval; grey: the control; diamond: the ablation.

    Args:
        result: the means.
        theme: "light" or "dark".
        k: how many edges.
        shared: only edges between different heads, if there are any.
    """
    table = result.table()
    if shared and table["shared"].any():
        table = table[table["shared"]]
    table = table.head(k)
    names = [edge_name(unit) for unit in table["edge"]]
    kinds = [edge_kind(unit) for unit in table["edge"]]
    colours, (mean, low, high) = THEMES[theme], (table[each].to_numpy() for each in ("mean", "low", "high"))
    figure = go.Figure()
    for kind in dict.fromkeys(kinds):
        mine = [i for i, other in enumerate(kinds) if other == kind]
        figure.add_bar(
            x=mean[mine],
            y=[names[i] for i in mine],
            orientation="h",
            name=f"mean score, {kind.name}",
            marker_color=kind.colour,
            error_x=interval_bars(mean[mine], low[mine], high[mine], color=colours.text, thickness=1),
            hovertemplate="%{y}<br>mean %{x:.3f}<extra></extra>",
        )
    figure.update_layout(barmode="overlay")
    if result.control != "none":
        for name, low, high in zip(names, table["control_low"], table["control_high"], strict=True):
            figure.add_scatter(
                x=[low, high],
                y=[name, name],
                mode="lines",
                orientation="h",
                line={"color": colours.muted, "width": 5},
                name=CONTROLS[result.control],
                showlegend=name == names[0],
                hovertemplate="control %{x:.3f}<extra></extra>",
            )
    found = table[table["ablation"].notna()]
    if len(found):
        figure.add_scatter(
            x=found["ablation"],
            y=[edge_name(unit) for unit in found["edge"]],
            mode="markers",
            orientation="h",
            name="measured by ablation (mean)",
            marker={"symbol": "diamond", "size": 10, "color": colours.selected},
            hovertemplate="%{y}<br>effect of ablation %{x:.3f}<extra></extra>",
        )
    figure.add_vline(x=0, line_width=1, line_color=colours.muted)
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1], title="edge")
    figure.update_xaxes(title=f"contribution ({UNITS[result.objective]})")
    return finish(figure, theme, height=120 + 26 * len(names))
