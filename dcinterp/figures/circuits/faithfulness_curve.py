"""f of circuits against their share of the edges, beside circuits of nodes and random ones."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from dcinterp.analysis.circuits.faithfulness import FaithfulnessCurve
from dcinterp.figures.base.style import SERIES, THEMES, finish, interval_bars, see_through

RESULT = "FaithfulnessCurve"
KIND = ""

NAMES = {"edges": "highest edges", "nodes": "edges of the highest nodes", "random": "random edges"}


def plot(result: FaithfulnessCurve, *, theme: str = "light", mark: tuple[float, float] | None = None) -> go.Figure:
    """One line per ranking, with the interval over prompts as bars; 1 is the whole model, 0 the patched run.

    The shares are drawn on a logarithmic axis; CMD and CPR in the legend are areas on a linear one.

    Args:
        result: the curve.
        theme: "light" or "dark".
        mark: share and f of one more circuit of the same prompts, as a point.
    """
    figure = go.Figure()
    for number, name in enumerate(result.rankings):
        f, low, high = (getattr(result, each)[number] for each in ("f", "low", "high"))
        figure.add_scatter(
            x=result.fraction.tolist(),
            y=f.tolist(),
            error_y=interval_bars(f, low, high, color=see_through(SERIES[number])),
            name=f"{NAMES[name]}: {_areas(float(result.cmd[number]), float(result.cpr[number]))}",
            mode="lines+markers",
            line={"color": SERIES[number], "width": 3 if name == "edges" else 2},
            marker={"color": SERIES[number], "size": 7},
            customdata=result.kept.tolist(),
            hovertemplate=f"{NAMES[name]}<br>%{{customdata:,}} edges (%{{x:.1%}}): f = %{{y:.2f}}<extra></extra>",
        )
    if mark is not None:
        figure.add_scatter(
            x=[mark[0]],
            y=[mark[1]],
            name=f"this circuit: f = {mark[1]:.2f}",
            mode="markers",
            marker={"symbol": "diamond-open", "size": 15, "color": THEMES[theme].text, "line": {"width": 3}},
            hovertemplate="this circuit (%{x:.2%}): f = %{y:.2f}<extra></extra>",
        )
    figure.add_hline(y=1, line_width=1, line_color=THEMES[theme].muted)
    figure.update_xaxes(title="share of the edges kept", type="log", tickformat=".1~%", tickvals=[0.001, 0.01, 0.1, 1])
    figure.update_yaxes(title="f: the way from no edge (0) to the model (1)")
    finish(figure, theme, height=380)
    return figure.update_layout(legend={"orientation": "v", "yanchor": "bottom", "y": 1.02})


def _areas(cmd: float, cpr: float) -> str:
    """The two areas; f divides by how far m falls, and is nothing where m does not change."""
    return "f is not defined" if math.isnan(cmd) else f"CMD {cmd:.3f}, CPR {cpr:.3f}"
