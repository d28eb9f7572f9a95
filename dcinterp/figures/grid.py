"""A labelled heatmap whose cells can be clicked: the part that the kinds of figure share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from dcinterp.figures.style import THEMES, diverging, finish, sequential


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
    selected: tuple[int, int] | None = None,
    numbers: bool = False,
    height: int | None = None,
    title: str = "",
) -> go.Figure:
    """A heatmap [y, x]; signed data symmetric around zero, weights from zero.

    Args:
        values: the numbers, rows first.
        x: labels of the columns.
        y: labels of the rows, the first on top.
        x_title: what the columns are.
        y_title: what the rows are.
        quantity: what a number is, for the colour bar and the hover text.
        theme: "light" or "dark".
        signed: whether negative values have a meaning.
        limit: the value of the strongest colour; the largest magnitude when None.
        selected: (row, column) of a cell to outline.
        numbers: whether to write the value into each cell.
        height: in pixels; from the number of rows when None.
        title: above the figure.
    """
    z = np.asarray(values, dtype=float)
    rows, columns = z.shape
    top = limit or float(np.abs(z).max()) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=z,
            colorscale=diverging(theme) if signed else sequential(theme),
            zmin=-top if signed else 0.0,
            zmax=top,
            hoverinfo="skip",
            xgap=1,
            ygap=1,
            texttemplate="%{z:.2f}" if numbers else None,
            textfont={"size": 11},
            colorbar={"title": {"text": quantity, "side": "right", "font": {"size": 12}}, "thickness": 12, "len": 0.95},
        )
    )
    # A heatmap alone reports no clicks: invisible points over the cells do, and carry the hover text.
    across, down = np.meshgrid(np.arange(columns), np.arange(rows))
    points = go.Scatter if z.size <= 4096 else go.Scattergl
    figure.add_trace(
        points(
            x=across.ravel(),
            y=down.ravel(),
            mode="markers",
            customdata=[[x[c], y[r], z[r, c]] for r in range(rows) for c in range(columns)],
            hovertemplate=f"{y_title} %{{customdata[1]}}, {x_title} %{{customdata[0]}}<br>"
            f"{quantity} %{{customdata[2]:.3f}}<extra></extra>",
            showlegend=False,
            marker={"size": 4, "color": "rgba(0,0,0,0)"},
            selected={"marker": {"opacity": 0}},
            unselected={"marker": {"opacity": 0}},
        )
    )
    if selected is not None:
        row, column = selected
        figure.add_shape(
            type="rect",
            x0=column - 0.5,
            x1=column + 0.5,
            y0=row - 0.5,
            y1=row + 0.5,
            line={"color": THEMES[theme].selected, "width": 3},
        )
    figure.update_layout(hovermode="closest", hoverdistance=-1, dragmode=False, clickmode="event+select")
    figure.update_xaxes(
        range=[-0.5, columns - 0.5], tickvals=list(range(columns)), ticktext=list(x), title=x_title, fixedrange=True
    )
    figure.update_yaxes(
        range=[rows - 0.5, -0.5], tickvals=list(range(rows)), ticktext=list(y), title=y_title, fixedrange=True
    )
    return finish(figure, theme, height=height or 110 + 34 * rows, title=title)
