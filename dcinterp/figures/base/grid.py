"""A labelled heatmap: the part that the kinds of figure share.

The app draws it on a canvas whose cells can be clicked and walked with the arrow keys (app/workbench/heatmap.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import unescape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from dcinterp.figures.base.style import THEMES, axis, common_layout, cut, diverging, sequential

NAMED_CELLS = 16384
"""Above this the names of rows and columns would weigh more than the numbers, and hovering shows indices."""


ROOM_OF_A_TITLE = 24
"""Pixels."""


def grid(
    values: ArrayLike,
    *,
    x: Sequence[str],
    y: Sequence[str],
    x_title: str,
    y_title: str,
    quantity: str,
    theme: str,
    signed: bool = True,
    limit: float | None = None,
    selected: tuple[int, ...] | None = None,
    numbers: bool = False,
    height: int | None = None,
    title: str = "",
) -> go.Figure:
    """A heatmap [y, x]; signed data symmetric around zero, weights from zero.

    Args:
        values: the numbers, rows first; a cell that is NaN stays empty.
        x: labels of the columns.
        y: labels of the rows, the first on top.
        x_title: what the columns are.
        y_title: what the rows are.
        quantity: what a number is, for the colour bar and the hover text.
        theme: "light" or "dark".
        signed: whether negative values have a meaning.
        limit: the value of the strongest colour; the largest magnitude when None.
        selected: (row, column) of a cell to outline, or (row, column, rows, columns) of several.
        numbers: whether to write the value into each cell.
        height: in pixels; from the number of rows when None.
        title: above the figure.
    """
    z = np.asarray(values, dtype=float)
    rows, columns = z.shape
    top = limit or float(np.abs(z[np.isfinite(z)]).max(initial=0.0)) or 1.0
    named = z.size <= NAMED_CELLS
    trace = go.Heatmap(
        z=z,
        colorscale=diverging(theme) if signed else sequential(theme),
        zmin=-top if signed else 0.0,
        zmax=top,
        # Columns are positions, so that equal words do not fall together; their names come with the cell.
        hovertext=_names(x, y, x_title, y_title) if named else None,
        hovertemplate=("%{hovertext}" if named else f"{y_title} %{{y}}, {x_title} %{{x}}")
        + f"<br>{quantity} %{{z:.3f}}<extra></extra>",
        xgap=1 if columns <= 128 else 0,
        ygap=1 if rows <= 128 else 0,
        texttemplate="%{z:.2f}" if numbers else None,
        textfont={"size": 11},
        colorbar={"title": {"text": quantity, "side": "right", "font": {"size": 12}}, "thickness": 12, "len": 0.95},
    )
    tall = (height or min(110 + 34 * rows, 900)) + (ROOM_OF_A_TITLE if title else 0)
    layout = common_layout(theme, tall, title) | {
        "dragmode": False,
        "xaxis": _axis(x, x_title) | {"range": [-0.5, columns - 0.5]},
        "yaxis": _axis(y, y_title) | {"range": [rows - 0.5, -0.5]},
        "shapes": [] if selected is None else [_frame(selected, THEMES[theme].selected)],
    }
    return go.Figure(trace, layout)


WIDTH = 720
"""Pixels that the cells of a figure share on a narrow page."""
LEAST = 3
"""Signs of a word that a cell must have room for; else words are not written, and told where one points at the cell."""


def write_words(figure: go.Figure, words: Sequence[Sequence[str]]) -> go.Figure:
    """Write a word into every cell of a heatmap: cut where it would run into the next, whole where one points at it.

    Where there are so many columns that no word could be read, none is written.

    Args:
        figure: what `grid` made.
        words: rows of them, first row on top.
    """
    (trace,) = figure.data
    columns = len(words[0])
    size = 11 if columns <= 20 else 9
    room = int(WIDTH / columns / (0.6 * size))
    return figure.update_traces(
        text=[[_cut(word, room) for word in row] for row in words] if room >= LEAST else None,
        texttemplate="%{text}" if room >= LEAST else None,
        textfont={"size": size},
        customdata=words,
        hovertemplate=trace.hovertemplate.replace("<extra>", "<br>%{customdata}<extra>"),
    )


def _cut(word: str, room: int) -> str:
    plain = unescape(word)
    return word if len(plain) <= room else cut(plain, room).replace("<", "&lt;")


def written(trace: go.Heatmap) -> np.ndarray | None:
    """What is written into the cells of a heatmap, whole words."""
    given = trace.text if trace.customdata is None else trace.customdata
    return None if given is None else np.asarray(given, dtype=object)


def tick_names(axis: Any, count: int) -> list[str] | None:
    """What each of `count` rows or columns is called: its tick, or the nearest one where there are fewer ticks."""
    if not axis.ticktext:
        return None
    if len(axis.ticktext) >= count:
        return [str(name) for name in axis.ticktext[:count]]
    places = np.asarray(axis.tickvals, dtype=float)
    return [str(axis.ticktext[int(np.abs(places - number).argmin())]) for number in range(count)]


def _axis(names: Sequence[str], title: str) -> dict[str, Any]:
    ticks = {"tickvals": list(range(len(names))), "ticktext": list(names)}
    return axis(title, fixedrange=True) | ticks


def _frame(at: tuple[int, ...], colour: str) -> dict[str, Any]:
    row, column, *size = at
    rows, columns = size or (1, 1)
    corners = {"x0": column - 0.5, "x1": column - 0.5 + columns, "y0": row - 0.5, "y1": row - 0.5 + rows}
    return corners | {"type": "rect", "line": {"color": colour, "width": 3}}


def _names(x: Sequence[str], y: Sequence[str], x_title: str, y_title: str) -> list[list[str]]:
    columns = told_apart(x)
    return [[f"{y_title} {row}, {x_title} {column}" for column in columns] for row in told_apart(y)]


def told_apart(names: Sequence[Any]) -> list[str]:
    """Names of rows or columns; those that repeat, as words of a prompt do, with their number behind them."""
    many = Counter(names)
    return [f"{name} ({number})" if many[name] > 1 else str(name) for number, name in enumerate(names)]
