"""A composition map, or one of its parts, as a head x head heatmap."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.composition.composition_map import CompositionMap
from dcinterp.figures.base.grid import grid
from dcinterp.mechanism.branches import PART_LABELS, part_name

RESULT = "CompositionMap"
KIND = ""


def plot(
    result: CompositionMap, *, theme: str = "light", part: str = "total", selected: tuple[int, int] | None = None
) -> go.Figure:
    """Rows are heads that share their attention, columns heads that borrow it.

    Args:
        result: the map.
        theme: "light" or "dark".
        part: "total", "base", "qp", "qg", "kp" or "kg".
        selected: (head_from, head_to) to outline.
    """
    heads = [str(head) for head in range(result.total.shape[0])]
    return grid(
        getattr(result, part_name(part)).numpy(),
        x=heads,
        y=heads,
        x_title="to head",
        y_title="from head",
        quantity="weight",
        theme=theme,
        selected=selected,
        numbers=len(heads) <= 12,
        title=f"Layer {result.layer}, {result.stage}: {PART_LABELS[part_name(part)]}",
    )
