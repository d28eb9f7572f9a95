"""What the composition of every layer adds to the answer, by branch."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.composition.composition_importance import ADDED, CompositionImportance
from dcinterp.figures.base.style import BRANCH_COLOURS, BRANCH_NAMES, THEMES, finish, interval_bars, interval_note
from dcinterp.mechanism.objective import UNITS
from dcinterp.support.text import counted

RESULT = "CompositionImportance"
KIND = ""


def plot(result: CompositionImportance, *, theme: str = "light") -> go.Figure:
    """One bar per layer and stage, stacked by branch; the diamond is their sum with its interval.

    Args:
        result: the scores.
        theme: "light" or "dark".
    """
    places = [(layer, s) for layer in range(result.by_layer.shape[0]) for s in range(len(result.stages))]
    names = [f"{layer} {result.stages[s]}" for layer, s in places]
    colours = THEMES[theme]
    figure = go.Figure()
    for number, branch in enumerate(ADDED):
        figure.add_bar(
            x=names,
            y=[float(result.by_branch[layer, s, number]) for layer, s in places],
            name=f"{BRANCH_NAMES[branch]} ({branch})",
            marker_color=BRANCH_COLOURS[branch],
            hovertemplate=f"layer %{{x}}<br>{BRANCH_NAMES[branch]} %{{y:.3f}}<extra></extra>",
        )
    total = [float(result.by_layer[place]) for place in places]
    figure.add_scatter(
        x=names,
        y=total,
        error_y=interval_bars(total, result.low.flatten(), result.high.flatten()),
        mode="markers",
        name=f"together{interval_note(result.low, result.level)}",
        marker={"symbol": "diamond", "size": 9, "color": colours.selected},
        hovertemplate="layer %{x}<br>together %{y:.3f}<extra></extra>",
    )
    figure.add_hline(y=0, line_width=1, line_color=colours.muted)
    figure.update_layout(barmode="relative", bargap=0.25)
    figure.update_xaxes(title="layer and stage", type="category")
    unit = UNITS[result.objective]
    figure.update_yaxes(title=f"mean over {counted(result.n, 'example')} ({unit})")
    return finish(figure, theme, height=380)
