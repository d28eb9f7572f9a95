"""A circuit drawn: layers from bottom to top, heads from left to right, composition in the colours of the branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from dcinterp.analysis.circuits.circuit import CircuitScores
from dcinterp.figures.base.style import THEMES, axis, common_layout
from dcinterp.figures.circuits.circuit_bars import colour_of
from dcinterp.mechanism.circuit_drawing import CircuitNotes, Drawing, Drawn
from dcinterp.support.ranges import Count

RESULT = "CircuitScores"
KIND = "drawing"

STREAM = {"light": ("#4b5563", "#a9afba"), "dark": ("#c3cad6", "#69717f")}
"""Greys of edges of the stream that raise m, and of those that lower it."""

SYMBOLS = {
    "scores": "circle-open",
    "attention": "circle",
    "head": "square",
    "mlp": "diamond",
    "weights": "cross",
    "group": "square-open",
}
"""Of nodes; the embedding and the logits are squares too."""

WIDEST, NARROWEST = 7.0, 0.8
BENT = 12
"""Points of a bent line."""


def plot(
    result: CircuitScores,
    *,
    theme: str = "light",
    size: int | None = None,
    switched: Sequence[str] = (),
    pinned: Sequence[str] = (),
    groups: Sequence[tuple[str, Sequence[str]]] = (),
    names: Mapping[str, str] | None = None,
    most: Count = 400,
) -> go.Figure:
    """Nodes with the circuit's edges between them; an edge's width is the size of its score.

    Edges of the stream are grey, dark where they raise m; composition edges have the colour of their branch. A dashed
    edge lowers m. A dotted, pale one is on no path of the circuit from the embedding to the logits.

    Args:
        result: the scores.
        theme: "light" or "dark".
        size: how many of the highest edges; by default the result's own circuit.
        switched: edges put in or taken out by hand, by name.
        pinned, groups, names: what a person notes on nodes; a group is drawn as one node.
        most: how many edges at most are drawn, the largest first.
    """
    kept = result.highest(result.size if size is None else size, switched)
    notes = CircuitNotes(
        tuple(switched), tuple(pinned), tuple((name, tuple(of)) for name, of in groups), dict(names or {})
    )
    drawing = result.drawing(kept, notes)
    shown, traces, seen = drawing.edges[:most], [], set[str]()
    widest = max((abs(edge.score) for edge in shown), default=1.0) or 1.0
    for edge in reversed(shown):
        look = look_of(edge, theme, widest)
        xs, ys = bent(drawing, edge)
        traces.append(
            {
                "type": "scatter",
                "x": xs,
                "y": ys,
                "mode": "lines",
                "line": {"color": look["colour"], "width": look["width"], "dash": look["dash"]},
                "opacity": look["opacity"],
                "name": kind_name(edge),
                "legendgroup": kind_name(edge),
                "showlegend": kind_name(edge) not in seen,
                "hoverinfo": "skip",
            }
        )
        seen.add(kind_name(edge))
    middles = [bent(drawing, edge) for edge in shown]
    traces.append(
        {
            "type": "scatter",
            "x": [xs[BENT // 2] for xs, _ in middles],
            "y": [ys[BENT // 2] for _, ys in middles],
            "mode": "markers",
            "marker": {"size": 8, "color": "rgba(0,0,0,0)"},
            "text": [f"{edge.name}<br>score {edge.score:+z.3f}" for edge in shown],
            "hovertemplate": "%{text}<extra></extra>",
            "showlegend": False,
        }
    )
    traces.append(_nodes(drawing, theme))
    layout = common_layout(theme, 130 + 46 * len(drawing.rows)) | {
        "xaxis": axis(visible=False),
        "yaxis": axis(tickvals=list(range(len(drawing.rows))), ticktext=list(drawing.rows)),
        "hovermode": "closest",
        "meta": words(drawing, len(shown)),
    }
    return go.Figure(traces, layout)


def look_of(edge: Drawn, theme: str, widest: float) -> dict[str, Any]:
    """Colour, width, dash and opacity of an edge; `widest` is the largest score of the drawing, in size."""
    colour = STREAM[theme][edge.score < 0] if edge.kind == "stream" else colour_of(edge.kind, theme)
    width = max(NARROWEST, WIDEST * (abs(edge.score) / widest) ** 0.5)
    dash = "dot" if not edge.connected else "dash" if edge.score < 0 else "solid"
    return {"colour": colour, "width": width, "dash": dash, "opacity": 1 if edge.connected else 0.3}


def kind_name(edge: Drawn) -> str:
    """What the legend calls an edge: its branch, or the stream with its sign."""
    if edge.kind == "stream":
        return "stream, raises m" if edge.score >= 0 else "stream, lowers m"
    return edge.kind.split()[1]


def corners(drawing: Drawing, edge: Drawn) -> list[tuple[float, float]]:
    """Corners of an edge as a cubic Bézier curve, which leaves upwards and arrives from below.

    Edges that join the same nodes would lie on one another, and are moved aside by their place in the list.
    """
    start, end = drawing.node(edge.source), drawing.node(edge.target)
    rise, aside = 0.45 * (end.y - start.y), 0.09 * (edge.index % 5 - 2)
    return [(start.x, start.y), (start.x + aside, start.y + rise), (end.x + aside, end.y - rise), (end.x, end.y)]


def bent(drawing: Drawing, edge: Drawn) -> tuple[list[float], list[float]]:
    """Points along an edge."""
    four, xs, ys = corners(drawing, edge), [], []
    for step in range(BENT + 1):
        t = step / BENT
        weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
        xs.append(sum(w * x for w, (x, _) in zip(weights, four, strict=True)))
        ys.append(sum(w * y for w, (_, y) in zip(weights, four, strict=True)))
    return xs, ys


def words(drawing: Drawing, shown: int) -> dict[str, str]:
    """The drawing in words: what its marks mean, and its largest edges."""
    legend = (
        "Width is the size of the score; dashed edges lower m, dotted ones are on no path of the circuit. Grey edges "
        "are of the stream, of a head's own attention, or of a map that is the same for all tokens; green ones come "
        "from the query, purple from the key, of projections dark and of gates light. Filled circles are a head's "
        "attention, squares what it reads and writes, diamonds MLPs."
    )
    # An edge into a key or value that heads share is drawn to each of them.
    every = {edge.index for edge in drawing.edges}
    drawn = {edge.index: edge for edge in drawing.edges[:shown]}
    largest = "; ".join(f"{edge.name} {edge.score:+z.2f}" for edge in [*drawn.values()][:8])
    many = f"{len(drawn)} of {len(every)}" if len(drawn) < len(every) else str(len(drawn))
    joined = {end for edge in drawing.edges[:shown] for end in (edge.source, edge.target)}
    text = f"A circuit of {many} edge{'' if len(every) == 1 else 's'} between {len(joined)} nodes."
    return {"legend": legend, "alternative": f"{text} The largest: {largest}." if largest else "A circuit of no edges."}


def _nodes(drawing: Drawing, theme: str) -> dict[str, Any]:
    text, ends = THEMES[theme].text, ("embedding", "logits")
    return {
        "type": "scatter",
        "x": [node.x for node in drawing.nodes],
        "y": [node.y for node in drawing.nodes],
        "mode": "markers+text",
        "marker": {
            "symbol": [SYMBOLS.get(node.kind, "square") for node in drawing.nodes],
            "size": [13 if node.kind in ends or node.pinned else 10 for node in drawing.nodes],
            "color": ["#cc6633" if node.pinned else text for node in drawing.nodes],
        },
        "text": [short_name(node.label) for node in drawing.nodes],
        "customdata": [node.label for node in drawing.nodes],
        "textposition": "middle right",
        "textfont": {"size": 10, "color": text},
        "hovertemplate": "%{customdata}<extra></extra>",
        "showlegend": False,
    }


def short_name(label: str) -> str:
    """A label without what its row says already."""
    if label.endswith(" weights"):
        return "weights"
    return label.removesuffix(" scores").removesuffix(" attention")
