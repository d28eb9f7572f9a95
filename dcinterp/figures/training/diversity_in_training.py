"""Cumulative variance of the heads' products at one checkpoint of training, over the first one as a reference."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.training.training_diversity import PRODUCTS, TrainingDiversity
from dcinterp.figures.base.style import THEMES, finish
from dcinterp.support.errors import UserError

RESULT = "TrainingDiversity"
KIND = ""

COLOURS = ("#0072b2", "#d55e00")


def plot(
    result: TrainingDiversity, *, theme: str = "light", checkpoint: int = -1, layer: int | None = None
) -> go.Figure:
    """QK and OV at a checkpoint (thick) and at the first one recorded (thin).

    Args:
        result: the spectra.
        theme: "light" or "dark".
        checkpoint: number of the checkpoint, as a slider gives it; negative ones count from the end.
        layer: one layer; the mean over all when None.
    """
    checkpoints, _, layers, components = result.cumulative.shape
    if not -checkpoints <= checkpoint < checkpoints:
        raise UserError(f"There is no checkpoint {checkpoint}; the run recorded {checkpoints}.")
    if layer is not None and not -layers <= layer < layers:
        raise UserError(f"There is no layer {layer}; the model has {layers}.")
    values = result.cumulative.mean(2) if layer is None else result.cumulative[:, :, layer]
    shown = [(checkpoint % checkpoints, 3)]
    if shown[0][0] != 0:
        shown.insert(0, (0, 1))
    figure = go.Figure()
    for number, product in enumerate(PRODUCTS):
        for at, width in shown:
            step = int(result.step[at])
            figure.add_scatter(
                x=list(range(1, components + 1)),
                y=values[at, number].tolist(),
                name=f"{product}, step {step:,}",
                mode="lines",
                line={"color": COLOURS[number], "width": width, "dash": "solid" if width > 1 else "dot"},
                hovertemplate=f"{product}, step {step:,}: %{{y:.1%}} in %{{x}} components<extra></extra>",
            )
    figure.update_xaxes(title="principal components", color=THEMES[theme].text)
    figure.update_yaxes(title="cumulative variance", range=[0, 1.02], tickformat=".0%")
    return finish(figure, theme, height=380)
