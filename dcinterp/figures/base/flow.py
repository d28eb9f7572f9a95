"""Flow diagrams whose names stand beside the bands and not on them.

Plotly writes the name of a node over the bands that leave it. Here the places of the nodes are computed, and the names
are notes: left of the first column, right of the last, above the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from dcinterp.figures.base.style import THEMES, common_layout

THICKNESS, PAD, LETTER, EDGE = 14, 24, 7.6, 22
"""Pixels: of a node, between two of a column, of a letter, of the margin above and below."""

Link = tuple[int, int, float, str, str]
"""From which node, to which, how much, in which colour, what it says."""


def flow(names: Sequence[str], column: Sequence[int], links: Sequence[Link], theme: str) -> go.Figure:
    """A flow diagram.

    Args:
        names: of the nodes.
        column: of every node, from 0.
        links: the bands.
        theme: "light" or "dark".
    """
    groups = [[node for node, at in enumerate(column) if at == c] for c in range(max(column, default=0) + 1)]
    inner = max(160, 24 * len(links), 48 * max(map(len, groups), default=1))
    places = _places(groups, links, len(names), inner)
    colours, last = THEMES[theme], len(groups) - 1
    sides = [max((len(names[node]) for node in groups[c]), default=0) * LETTER + 16 for c in (0, last)]
    notes = [
        _note(names[node], column[node] / max(last, 1), middle, size, inner, colours.text)
        for node, (middle, size) in enumerate(places)
    ]
    sankey = go.Sankey(
        arrangement="fixed",
        node={
            "label": list(names),
            "x": [min(max(at / max(last, 1), 0.001), 0.999) for at in column],
            "y": [min(max(middle / inner, 0.001), 0.999) for middle, _ in places],
            "pad": PAD,
            "thickness": THICKNESS,
            "color": colours.muted,
            "line": {"width": 0},
            "hovertemplate": "%{label}: %{value:.3f}<extra></extra>",
        },
        link=_columns(links),
        # The names are notes; those of the trace are for hovering, for the text alternative and for images.
        textfont={"color": "rgba(0,0,0,0)", "size": 1, "shadow": "none"},
    )
    layout = common_layout(theme, inner + 2 * EDGE) | {
        "margin": {"l": sides[0], "r": sides[1], "t": EDGE, "b": EDGE},
        "annotations": notes,
    }
    return go.Figure(sankey, layout)


def _columns(links: Sequence[Link]) -> dict[str, Any]:
    columns = list(zip(*links, strict=True)) if links else [(), (), (), (), ()]
    return dict(zip(("source", "target", "value", "color", "label"), columns, strict=True))


def _places(groups: list[list[int]], links: Sequence[Link], count: int, inner: float) -> list[tuple[float, float]]:
    """(middle, size) of every node in pixels from the top, with Plotly's own scale: the fullest column fills it."""
    out, into = [0.0] * count, [0.0] * count
    for source, target, value, *_ in links:
        out[source] += value
        into[target] += value
    size = [max(pair) for pair in zip(out, into, strict=True)]
    filled = [(sum(size[node] for node in group), len(group)) for group in groups]
    scale = min(((inner - PAD * (n - 1)) / total for total, n in filled if total), default=1.0)
    places = [(0.0, 0.0)] * count
    for group in groups:
        top = (inner - sum(size[node] for node in group) * scale - PAD * (len(group) - 1)) / 2
        for node in group:
            high = size[node] * scale
            places[node] = (top + high / 2, high)
            top += high + PAD
    return places


def _note(name: str, x: float, middle: float, size: float, inner: float, colour: str) -> dict[str, Any]:
    note = {"text": name, "x": x, "y": 1 - middle / inner, "xref": "paper", "yref": "paper", "showarrow": False}
    note["font"] = {"size": 13, "color": colour}
    if 0 < x < 1:
        return note | {"xanchor": "center", "yanchor": "bottom", "yshift": size / 2}
    side = "right" if x == 0 else "left"
    return note | {"xanchor": side, "yanchor": "middle", "xshift": -6 if x == 0 else 6}
