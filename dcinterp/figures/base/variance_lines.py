"""Shares of variance against the number of principal components, QK on the left and OV on the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dcinterp.figures.base.style import THEMES, finish

# Okabe and Ito's colours, in an order that keeps neighbours apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
PANELS: dict[Literal["qk", "ov"], str] = {"qk": "QK products", "ov": "OV products"}
SAID = {"concatenated": "side by side", "stacked": "on top of each other"}
"""How the products of the heads are put together, in words."""


def panels(theme: str) -> go.Figure:
    """Two empty panels with one scale of shares."""
    figure = make_subplots(cols=2, shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=list(PANELS.values()))
    figure.update_annotations(font_size=13, font_color=THEMES[theme].text)
    return figure


def add_line(
    figure: go.Figure,
    panel: Literal["qk", "ov"],
    shares: Sequence[float],
    *,
    name: str,
    colour: str,
    width: float = 2.5,
    dash: str = "solid",
    opacity: float = 1.0,
) -> None:
    """One curve of shares, from one component on; a name stands in the legend once."""
    column = list(PANELS).index(panel) + 1
    figure.add_scatter(
        x=list(range(1, len(shares) + 1)),
        y=list(shares),
        mode="lines",
        name=name,
        legendgroup=name,
        showlegend=column == 1,
        opacity=opacity,
        line={"color": colour, "width": width, "dash": dash},
        hovertemplate=f"{name}<br>%{{x}} components: %{{y:.1%}}<extra></extra>",
        row=1,
        col=column,
    )


def finish_panels(figure: go.Figure, theme: str) -> go.Figure:
    """The common layout, with the titles of the panels above it."""
    finish(figure, theme, height=380)
    figure.update_layout(margin={"t": 64}, legend={"y": 1.1})
    figure.update_xaxes(title_text="components")
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%", title_text="variance captured", col=1)
    return figure
