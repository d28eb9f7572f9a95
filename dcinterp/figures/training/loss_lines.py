"""Training and held-out loss against the tokens that the model had read."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from dcinterp.analysis.training.loss_curves import LossCurves
from dcinterp.figures.base.style import THEMES, finish

RESULT = "LossCurves"
KIND = ""
MARKED_AT_MOST = 30


def plot(result: LossCurves, *, theme: str = "light", between: Sequence[float] | None = None) -> go.Figure:
    """The held-out loss (thick) and the training loss (thin).

    Args:
        result: the curves.
        theme: "light" or "dark".
        between: the ends of the loss axis, where several curves are to be compared; else what the curves need.
    """
    figure = go.Figure()
    lines = [("training", result.training_loss, "#0072b2", 2), ("held out", result.validation_loss, "", 4)]
    for name, values, colour, width in lines:
        there = values.isfinite()
        if not there.any():
            continue
        figure.add_scatter(
            x=result.tokens_read[there].tolist(),
            y=values[there].tolist(),
            name=name,
            mode=points_of(int(there.sum())),
            line={"color": colour or THEMES[theme].text, "width": width},
            # A mark at the edge of the frame is drawn whole.
            cliponaxis=False,
            hovertemplate=f"{name}: %{{y:.3f}} after %{{x:,}} tokens<extra></extra>",
        )
    figure.update_xaxes(title="tokens read", rangemode="tozero")
    figure.update_yaxes(title="loss (nats per token)", range=between)
    return finish(figure, theme, height=380)


def points_of(count: int) -> str:
    """Lines with a mark at every measurement, unless there are too many to tell apart."""
    return "lines+markers" if count <= MARKED_AT_MOST else "lines"
