"""What every head's OV circuit does to words: heads against relations."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.weights.ov_transformations import OVTransformations
from dcinterp.figures.base.grid import grid

RESULT = "OVTransformations"
KIND = ""


def plot(result: OVTransformations, *, theme: str = "light", selected: int | None = None) -> go.Figure:
    """Colour is the score minus its shuffled-pairs control; a number marks scores that are above it.

    Args:
        result: the scores.
        theme: "light" or "dark".
        selected: a head, counted through all layers, whose column to outline.
    """
    layers, heads, relations = result.score.shape
    margin = (result.score - result.control).permute(2, 0, 1).reshape(relations, layers * heads)
    above = result.above_control.permute(2, 0, 1).reshape(relations, layers * heads)
    score = result.score.permute(2, 0, 1).reshape(relations, layers * heads)
    figure = grid(
        margin.numpy(),
        x=[f"L{layer}H{head}" for layer in range(layers) for head in range(heads)],
        y=list(result.relations),
        x_title="head",
        y_title="relation",
        quantity="score minus control",
        theme=theme,
        selected=(0, selected, relations, 1) if selected is not None else None,
        limit=1.0,
        height=150 + 34 * relations,
    )
    if layers * heads <= 64:
        text = [
            [f"{100 * value:.0f}" if mark else "" for value, mark in zip(*row, strict=True)]
            for row in zip(score.tolist(), above.tolist(), strict=True)
        ]
        figure.data[0].update(text=text, texttemplate="%{text}", textfont={"size": 10})
    return figure
