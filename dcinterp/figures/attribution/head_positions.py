"""Where in the prompt the heads of one layer contribute."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_heads import HeadAttribution
from dcinterp.figures.base.grid import grid
from dcinterp.figures.base.style import visible
from dcinterp.mechanism.objective import UNITS
from dcinterp.support.errors import UserError, require_number

RESULT = "HeadAttribution"
KIND = "positions"


def plot(result: HeadAttribution, *, theme: str = "light", layer: int = -1, selected: int | None = None) -> go.Figure:
    """Rows are the heads of a layer, columns the positions of their outputs.

    Args:
        result: the scores.
        theme: "light" or "dark".
        layer: which layer; negative counts from the last.
        selected: a head whose strongest position to outline.
    """
    layers, heads, _ = result.by_position.shape
    if not -layers <= layer < layers:
        raise UserError(f"There is no layer {layer}; this model has layers 0..{layers - 1}.")
    if selected is not None:
        require_number("head", selected, heads)
    values = result.by_position[layer]
    most = int(values[selected].abs().argmax()) if selected is not None else 0
    return grid(
        values.numpy(),
        x=[visible(token) for token in result.tokens],
        y=[str(head) for head in range(heads)],
        x_title="position",
        y_title="head",
        quantity=f"contribution ({UNITS[result.objective]})",
        theme=theme,
        selected=(selected, most) if selected is not None else None,
        height=130 + 30 * heads,
        title=f"Layer {layer % layers}",
    )
