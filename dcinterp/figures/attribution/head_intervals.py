"""The strongest heads of a dataset: mean score with its interval, the measured effect, and the control."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_heads_over import HeadAttributionSet
from dcinterp.figures.base.style import CONTROLS, THEMES, finish, interval_bars, interval_note
from dcinterp.mechanism.objective import UNITS
from dcinterp.support.ranges import Count
from dcinterp.support.text import counted

RESULT = "HeadAttributionSet"
KIND = "intervals"


def plot(result: HeadAttributionSet, *, theme: str = "light", shown: Count = 12) -> go.Figure:
    """One row per head, the largest mean in size on top; grey bars span the control.

    Args:
        result: the scores.
        theme: "light" or "dark".
        shown: how many heads.
    """
    frame = result.table().head(shown)
    names = [f"L{layer}H{head}" for layer, head in zip(frame["layer"], frame["head"], strict=True)]
    colours = THEMES[theme]
    figure = go.Figure()
    if result.control != "none":
        figure.add_bar(
            y=names,
            x=(frame["control_high"] - frame["control_low"]).tolist(),
            base=frame["control_low"].tolist(),
            orientation="h",
            name=CONTROLS[result.control],
            marker_color=colours.muted,
            opacity=0.35,
            hovertemplate="%{y}<br>control up to %{x:.3f}<extra></extra>",
        )
    figure.add_scatter(
        y=names,
        x=frame["mean"].tolist(),
        error_x=interval_bars(frame["mean"], frame["low"], frame["high"]),
        mode="markers",
        name=f"attribution{interval_note(frame['low'], result.level)}",
        marker={"size": 9, "color": THEMES[theme].text},
        hovertemplate="%{y}<br>mean score %{x:.3f}<extra></extra>",
    )
    figure.add_scatter(
        y=names,
        x=frame["ablation_mean"].tolist(),
        mode="markers",
        name="measured by ablation",
        marker={"size": 9, "symbol": "diamond-open", "color": colours.selected},
        hovertemplate="%{y}<br>measured effect %{x:.3f}<extra></extra>",
    )
    figure.add_vline(x=0, line_width=1, line_color=colours.muted)
    figure.update_xaxes(title=f"mean over {counted(result.n, 'example')} ({UNITS[result.objective]})")
    figure.update_yaxes(title="head", autorange="reversed", type="category")
    return finish(figure, theme, height=130 + 28 * len(names))
