"""Loss against compute for two families, both logarithmic, with the multiplier at the lowest common loss."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.training.scaling_fit import ScalingFit, end_text
from dcinterp.figures.base.style import THEMES, finish

RESULT = "ScalingFit"
KIND = ""

MEASURES = {
    "loss": "loss (nats per token)",
    "validation_loss": "held-out loss (nats per token)",
    "bits_per_byte": "held-out bits per byte",
}
COLOURS = ("#0072b2", "#d55e00")


def plot(result: ScalingFit, *, theme: str = "light") -> go.Figure:
    """A point for every run, a line for every family, and an arrow from one line to the other.

    Args:
        result: the fits.
        theme: "light" or "dark".
    """
    figure = go.Figure()
    for number, family in enumerate(result.families):
        flops = [c for name, c, _ in result.points if name == family]
        losses = [loss for name, _, loss in result.points if name == family]
        ends, line = result.line(number)
        colour = COLOURS[number]
        figure.add_scatter(
            x=flops,
            y=losses,
            mode="markers",
            name=family,
            marker={"color": colour, "size": 9, "symbol": ("circle", "diamond")[number]},
            hovertemplate=f"{family}: %{{y:.4f}} at %{{x:.3g}} FLOPs<extra></extra>",
        )
        figure.add_scatter(
            x=ends,
            y=line,
            mode="lines",
            showlegend=False,
            line={"color": colour, "width": 2, "dash": ("solid", "dash")[number]},
            hoverinfo="skip",
        )
    loss = float(result.loss[0])
    ends = sorted([float(result.other_flops[0]), float(result.base_flops[0])])
    figure.add_scatter(
        x=ends,
        y=[loss, loss],
        mode="lines+text",
        showlegend=False,
        name="compute for the same loss",
        line={"color": THEMES[theme].text, "width": 1, "dash": "dot"},
        text=[f"{float(result.multiplier[0]):.2f}x", ""],
        textposition="bottom left",
        hovertemplate=(
            f"{result.families[0]} needs {float(result.multiplier[0]):.2f} times the compute of "
            f"{result.families[1]}<br>"
            f"({float(result.multiplier_low[0]):.2f} to {end_text(float(result.multiplier_high[0]))})<extra></extra>"
        ),
    )
    figure.update_xaxes(title="training compute (FLOPs)", type="log", exponentformat="power")
    figure.update_yaxes(title=MEASURES.get(result.measure, result.measure), type="log")
    several = " and ".join(
        f"{sum(name == each for name, *_ in result.points)} runs of {each}" for each in result.families
    )
    figure.update_layout(
        meta={
            "legend": "A point is a run, a line what is fitted to a family; the dotted line joins equal losses.",
            "alternative": f"Loss against training compute, both logarithmic: {several}. {result.sentence()}",
        }
    )
    return finish(figure, theme, height=380)
