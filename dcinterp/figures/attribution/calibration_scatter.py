"""Measured effects of interventions against predicted ones, one point per unit."""

from __future__ import annotations

import math

import plotly.graph_objects as go
import torch

from dcinterp.analysis.attribution.calibrate import FLOWS, Calibration
from dcinterp.figures.base.style import BRANCH_COLOURS, THEMES, finish, interval_bars
from dcinterp.mechanism.edge_rules import RULES
from dcinterp.mechanism.objective import UNITS
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.text import counted

RESULT = "Calibration"
KIND = ""

METHODS = {**{name: rule.label for name, rule in RULES.items()}, "gradient": "the gradient"}
PLURAL = {"head": "heads", "branch": "branches", "edge": "edges", "weight": "dynamic weights"}
CHANGES = {"zero": "set to zero", "mean": "set to their mean", "counterfactual": "taken from a counterfactual prompt"}
MARKS = {"frozen": ("circle-open", BRANCH_COLOURS["o_qp"]), "recomputed": ("circle", BRANCH_COLOURS["o_kp"])}


def plot(result: Calibration, *, theme: str = "light", method: str | None = None) -> go.Figure:
    """Predicted on x, measured on y, with intervals over examples; on the line the prediction is exact.

    Args:
        result: the effects.
        theme: "light" or "dark".
        method: whose predictions; the first of the result when None.
    """
    method = method or result.methods[0]
    if method not in result.methods:
        raise UserError(f"There is no method {method!r} in this result; {nearest(method, result.methods)}")
    unit, m = UNITS[result.objective], result.methods.index(method)
    colours, figure = THEMES[theme], go.Figure()
    both = torch.cat([result.predicted_mean[m].flatten(), result.measured_mean.flatten()])
    low, high = float(both.min()), float(both.max())
    figure.add_scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        name="predicted = measured",
        line={"color": colours.muted, "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )
    for f, flow in enumerate(FLOWS):
        symbol, colour = MARKS[flow]
        mean = result.measured_mean[f]
        figure.add_scatter(
            x=result.predicted_mean[m, f].tolist(),
            y=mean.tolist(),
            mode="markers",
            name=f"weights {flow}: {_said(float(result.agreement[m, f]), float(result.correlation[m, f]))}",
            text=list(result.units),
            marker={"symbol": symbol, "color": colour, "size": 7},
            error_y=interval_bars(mean, result.measured_low[f], result.measured_high[f], thickness=0.6, width=0),
            hovertemplate="%{text}<br>predicted %{x:.3f}, measured %{y:.3f}<extra></extra>",
        )
    figure.update_xaxes(title=f"effect predicted by {METHODS[method]} ({unit})")
    figure.update_yaxes(title=f"measured effect ({unit})")
    finish(
        figure,
        theme,
        height=540,
        title=f"{PLURAL[result.part]} {CHANGES[result.kind]}, mean over {counted(result.n, 'example')}",
    )
    zero = {"zeroline": True, "zerolinecolor": colours.muted, "zerolinewidth": 1}
    # The legend is a list below the figure: its lines are long, and the window may be narrow.
    below = {"orientation": "v", "y": -0.17, "yanchor": "top"}
    return figure.update_layout(xaxis=zero, yaxis=zero, legend=below, margin_b=130)


def _said(alike: float, correlation: float) -> str:
    signs = "no effect" if math.isnan(alike) else f"same sign {alike:.0%}"
    return f"{signs}, {'no correlation' if math.isnan(correlation) else f'r {correlation:.2f}'}"
