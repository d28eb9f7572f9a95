"""The largest parts of a direct logit attribution."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.direct_logit_attribution import DirectLogitAttribution
from dcinterp.figures.base.style import SERIES, axis, common_layout, zero_line
from dcinterp.support.ranges import Count

RESULT = "DirectLogitAttribution"
KIND = "parts"


def plot(result: DirectLogitAttribution, *, theme: str = "light", k: Count = 16) -> go.Figure:
    """One bar a part, the largest on top; the lowest bar is the sum of all others.

    Args:
        result: the parts.
        theme: "light" or "dark".
        k: how many parts.
    """
    frame = result.table()
    shown = frame.head(k)
    names, values = shown["part"].tolist(), shown["logits"].tolist()
    if len(frame) > k:
        rest = len(frame) - k
        names.append("1 other" if rest == 1 else f"{rest} others")
        values.append(float(frame["logits"][k:].sum()))
    bars = go.Bar(
        x=values,
        y=names,
        orientation="h",
        marker_color=[SERIES[1] if value > 0 else SERIES[0] for value in values],
        hovertemplate="%{y}<br>%{x:.3f} logits<extra></extra>",
    )
    quantity = "part of the logit difference" if result.foil else "part of the logit"
    layout = common_layout(theme, 110 + 24 * len(names)) | {
        "xaxis": axis(quantity),
        "yaxis": axis("part", type="category", categoryorder="array", categoryarray=names[::-1]),
        "shapes": [zero_line(theme, upright=True)],
    }
    return go.Figure(bars, layout)
