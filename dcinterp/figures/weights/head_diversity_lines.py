"""How few directions explain a model's heads: one thin line per layer, their mean, and random weights."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.weights.head_diversity import HeadDiversity
from dcinterp.figures.base.style import THEMES
from dcinterp.figures.base.variance_lines import COLOURS, PANELS, SAID, add_line, finish_panels, panels

RESULT = "HeadDiversity"
KIND = ""


def plot(result: HeadDiversity, *, theme: str = "light") -> go.Figure:
    """A line that rises slowly belongs to heads that use many directions.

    Dash-dotted: the mean over layers with the products along the other axis, which the paper's words allow as well.

    Args:
        result: the shares.
        theme: "light" or "dark".
    """
    figure = panels(theme)
    layers = len(result.qk)
    for panel in PANELS:
        curves = getattr(result, panel)
        if layers > 1:
            for layer, curve in enumerate(curves):
                colour = COLOURS[layer % len(COLOURS)]
                # With many layers the mean matters most, and the legend has no room for all of them.
                name = f"layer {layer}" if layers <= len(COLOURS) else "one layer"
                add_line(figure, panel, curve.tolist(), name=name, colour=colour, width=1.5, opacity=0.9)
        mean = THEMES[theme].text
        add_line(figure, panel, result.mean(panel).tolist(), name="mean over layers", colour=mean, width=3)
        if result.other_reading:
            other = result.mean("qk_other" if panel == "qk" else "ov_other").tolist()
            add_line(figure, panel, other, name=f"mean, {SAID[result.other_reading]}", colour=mean, dash="dashdot")
        muted = THEMES[theme].muted
        add_line(figure, panel, result.random.tolist(), name="random weights", colour=muted, dash="dash")
    seen: set[str] = set()
    for trace in figure.data:
        trace.showlegend = trace.showlegend and trace.name not in seen
        seen.add(trace.name)
    return finish_panels(figure, theme)
