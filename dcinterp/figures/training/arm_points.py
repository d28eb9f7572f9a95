"""The arms of an experiment: a point for every seed, and the mean of each arm with its interval."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.training.compare_arms import ArmComparison
from dcinterp.figures.base.style import THEMES, finish

RESULT = "ArmComparison"
KIND = ""

SEED_COLOUR = "#56b4e9"
CROWDED = 0.8
"""Where all shares are above it, the axis begins near the least of them instead of at 0: points tell no length."""


def plot(result: ArmComparison, *, theme: str = "light") -> go.Figure:
    """A row for every arm, the baseline first.

    Args:
        result: the arms.
        theme: "light" or "dark".
    """
    figure = go.Figure()
    shown = [
        (arm, seed, float(v))
        for arm, row in zip(result.arms, result.values, strict=True)
        for seed, v in zip(result.seeds, row, strict=True)
        if bool(v.isfinite())
    ]
    figure.add_scatter(
        x=[value for _, _, value in shown],
        y=[arm for arm, _, _ in shown],
        mode="markers",
        name="a seed",
        marker={"color": SEED_COLOUR, "size": 8, "opacity": 0.6},
        customdata=[seed for _, seed, _ in shown],
        hovertemplate="%{y}, seed %{customdata}: %{x:.3f}<extra></extra>",
    )
    figure.add_scatter(
        x=result.mean.tolist(),
        y=list(result.arms),
        mode="markers",
        name="mean" if result.share else "mean, 95 % interval",
        marker={"color": THEMES[theme].text, "size": 10, "symbol": "diamond"},
        error_x=None
        if result.share
        else {
            "type": "data",
            "symmetric": False,
            "array": (result.high - result.mean).tolist(),
            "arrayminus": (result.mean - result.low).tolist(),
            "color": THEMES[theme].text,
            "thickness": 2,
        },
        hovertemplate="%{y}: %{x:.3f}<extra></extra>",
    )
    least = min((value for _, _, value in shown), default=0.0)
    start = least - 0.1 * (1 - least) - 0.002 if least > CROWDED else -0.02
    figure.update_xaxes(title=result.meaning, **({"range": [start, 1 + 0.02 * (1 - start)]} if result.share else {}))
    figure.update_yaxes(autorange="reversed", automargin=True)
    return finish(figure, theme, height=140 + 44 * len(result.arms))
