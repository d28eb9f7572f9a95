"""A number for every head of every layer, as a heatmap: the body of several kinds of figure."""

from __future__ import annotations

import plotly.graph_objects as go
from jaxtyping import Float
from torch import Tensor

from dcinterp.figures.base.grid import grid

NUMBERED_CELLS = 128
"""Up to so many heads have their number written into their cell."""


def layer_head_grid(
    values: Float[Tensor, "layer head"],
    *,
    quantity: str,
    theme: str,
    selected: tuple[int, int] | None,
    signed: bool = True,
    limit: float | None = None,
    title: str = "",
) -> go.Figure:
    """Layers downwards, heads across.

    Args:
        values: one number a head.
        quantity: what a number is, for the colour bar and the hover text.
        theme: "light" or "dark".
        selected: (layer, head) to outline.
        signed: whether negative values have a meaning.
        limit: the value of the strongest colour; the largest magnitude when None.
        title: above the figure.
    """
    layers, heads = values.shape
    return grid(
        values.numpy(),
        x=[str(head) for head in range(heads)],
        y=[str(layer) for layer in range(layers)],
        x_title="head",
        y_title="layer",
        quantity=quantity,
        theme=theme,
        signed=signed,
        selected=selected,
        numbers=values.numel() <= NUMBERED_CELLS,
        height=120 + 46 * layers,
        limit=limit,
        title=title,
    )
