"""What attribution predicts for the strongest edges, against what their ablation does."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.edge_attribution import EdgeAttribution
from dcinterp.figures.style import SERIES, THEMES, axis, common_layout

RESULT = "EdgeAttribution"
KIND = "check"


def plot(result: EdgeAttribution, *, theme: str = "light") -> go.Figure:
    """A point an edge; on the dashed line attribution and ablation agree.

    Args:
        result: the scores, with the edges that were ablated.
        theme: "light" or "dark".
    """
    predicted, measured = result.predicted.tolist(), result.measured.tolist()
    reach = max(map(abs, [*predicted, *measured, 1e-6])) * 1.1
    line = go.Scatter(
        x=[-reach, reach],
        y=[-reach, reach],
        mode="lines",
        name="agreement",
        line={"dash": "dash", "color": THEMES[theme].muted, "width": 1},
        hoverinfo="skip",
    )
    points = go.Scatter(
        x=predicted,
        y=measured,
        mode="markers+text",
        text=[name.replace("edge ", "").replace(" zero", "") for name in result.checked],
        textposition="top center",
        name="edges",
        marker={"size": 10, "color": SERIES[0]},
        hovertemplate="%{text}<br>predicted %{x:.3f}, measured %{y:.3f}<extra></extra>",
    )
    layout = common_layout(theme, 380) | {
        "xaxis": axis("predicted by attribution (logits)", range=[-reach, reach]),
        "yaxis": axis("measured by ablation (logits)", range=[-reach, reach]),
    }
    return go.Figure([line, points], layout)
