"""A heatmap that can be clicked and walked with the arrow keys: a figure of `dcinterp.figures` drawn on a canvas."""

from __future__ import annotations

import base64
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from dcinterp.figures.base.grid import written

HERE = Path(__file__).parent
HTML = """<div class="holder"><div class="frame"><canvas class="cells" aria-hidden="true"></canvas>
<div class="tip" hidden></div><div class="spoken" aria-live="polite"></div></div>
<canvas class="names" aria-hidden="true" hidden></canvas><div class="more" hidden></div></div>"""

_component = st.components.v2.component(
    "dcinterp_heatmap",
    html=HTML,
    css=(HERE / "heatmap.css").read_text(encoding="utf-8"),
    js=(HERE / "heatmap.js").read_text(encoding="utf-8"),
)

Picked = Callable[[int, int], None]
"""Called with (row, column) of the cell that was chosen."""


def heatmap(figure: Any, *, key: str, outline: str, alternative: str, on_pick: Picked | None = None) -> None:
    """Draw a figure that `dcinterp.figures.base.grid` made.

    Args:
        figure: one heatmap; a rectangle among its shapes is the cell chosen now.
        key: of the element; stable, so that the keyboard's focus survives a click.
        outline: colour of the chosen cell's frame.
        alternative: the text alternative.
        on_pick: called before the page runs again; without it cells cannot be chosen.
    """

    def picked() -> None:
        cell = st.session_state[key]["cell"]
        if cell and on_pick is not None:
            on_pick(int(cell["row"]), int(cell["column"]))

    _component(
        key=key,
        data=payload(figure) | {"outline": outline, "alternative": alternative, "active": on_pick is not None},
        on_cell_change=picked,
    )


def is_heatmap(figure: Any) -> bool:
    """Whether the figure is one heatmap and can be drawn here."""
    kinds = [trace.type for trace in figure.data]
    return kinds.count("heatmap") == 1 and set(kinds) <= {"heatmap", "scatter", "scattergl"}


def payload(figure: Any) -> dict[str, Any]:
    """What the browser needs: values as base64 float32, names, titles, colours, the chosen cell."""
    (trace,) = (t for t in figure.data if t.type == "heatmap")
    z = np.asarray(trace.z, dtype=np.float32)
    rows, columns = z.shape
    layout = figure.layout
    return {
        "z": base64.b64encode(z.tobytes()).decode(),
        "rows": rows,
        "columns": columns,
        "x": _names(layout.xaxis, columns),
        "y": _names(layout.yaxis, rows),
        "xTitle": layout.xaxis.title.text or "",
        "yTitle": layout.yaxis.title.text or "",
        "quantity": trace.colorbar.title.text or "",
        "zmin": trace.zmin,
        "zmax": trace.zmax,
        "colours": [[float(at), _channels(colour)] for at, colour in trace.colorscale],
        "title": layout.title.text or "",
        "text": _text(trace, z),
        "words": written(trace) is not None,
        "selected": _chosen(layout.shapes),
        # The figure's height holds its axis and margins; the canvas adds its own.
        "height": min(max((layout.height or 0) - 90, 30 * min(rows, 20)), 900 if rows < 100 else 680),
    }


def _names(axis: Any, count: int) -> list[str]:
    return (
        [unescape(str(name)) for name in axis.ticktext] if axis.ticktext is not None else [str(i) for i in range(count)]
    )


def _text(trace: Any, z: np.ndarray) -> list[list[str]] | None:
    if (words := written(trace)) is not None:  # whole: the canvas cuts where it has no room
        return [[unescape(str(cell)) for cell in row] for row in words.tolist()]
    if z.size > 1024:
        return None
    return [[f"{value:z.2f}" for value in row] for row in z.tolist()] if trace.texttemplate else None


def _chosen(shapes: Any) -> list[int] | None:
    """Row, column, and how many of each the frame holds."""
    for shape in shapes:
        if shape.type == "rect":
            rows, columns = round(abs(shape.y1 - shape.y0)), round(abs(shape.x1 - shape.x0))
            return [round(min(shape.y0, shape.y1) + 0.5), round(min(shape.x0, shape.x1) + 0.5), rows, columns]
    return None


def _channels(colour: str) -> list[int]:
    """Red, green and blue of #rrggbb."""
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
