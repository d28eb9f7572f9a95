"""Head diversity of several models: the mean over layers of each, and random weights of its shape."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.weights.compare_head_diversity import HeadDiversityComparison
from dcinterp.figures.base.variance_lines import COLOURS, PANELS, SAID, add_line, finish_panels, panels

RESULT = "HeadDiversityComparison"
KIND = ""


def plot(result: HeadDiversityComparison, *, theme: str = "light") -> go.Figure:
    """The lower of two lines belongs to the more diverse heads.

    Dash-dotted: with the products along the other axis, which the paper's words allow as well.

    Args:
        result: the shares.
        theme: "light" or "dark".
    """
    figure = panels(theme)
    for number, model in enumerate(result.models):
        colour = COLOURS[number % len(COLOURS)]
        shown = int(result.components[number])
        for panel in PANELS:
            curve = getattr(result, panel)[number, :shown].tolist()
            add_line(figure, panel, curve, name=model, colour=colour)
            if result.qk_other is not None and result.ov_other is not None:
                other = (result.qk_other if panel == "qk" else result.ov_other)[number, :shown].tolist()
                name = f"{model}, {SAID[result.other_reading]}"
                add_line(figure, panel, other, name=name, colour=colour, width=2, dash="dashdot")
            reference = result.random[number, :shown].tolist()
            add_line(
                figure, panel, reference, name=f"{model}, random", colour=colour, width=1.5, dash="dot", opacity=0.7
            )
    return finish_panels(figure, theme)
