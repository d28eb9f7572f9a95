"""Training and held-out loss against the tokens that the model had read."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.loss_curves import LossCurves
from dcinterp.figures.style import THEMES, finish

RESULT = "LossCurves"
KIND = ""


def plot(result: LossCurves, *, theme: str = "light") -> go.Figure:
    """The held-out loss (thick) and the training loss (thin).

    Args:
        result: the curves.
        theme: "light" or "dark".
    """
    figure = go.Figure()
    lines = [("training", result.training_loss, "#0072b2", 2), ("held out", result.validation_loss, "", 4)]
    for name, values, colour, width in lines:
        figure.add_scatter(
            x=result.tokens_read.tolist(),
            y=values.tolist(),
            name=name,
            mode="lines+markers",
            line={"color": colour or THEMES[theme].text, "width": width},
            hovertemplate=f"{name}: %{{y:.3f}} after %{{x:,}} tokens<extra></extra>",
        )
    figure.update_xaxes(title="tokens read", rangemode="tozero")
    figure.update_yaxes(title="loss, nats per token")
    return finish(figure, theme, height=380)
