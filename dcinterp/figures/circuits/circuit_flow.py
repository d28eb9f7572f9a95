"""The strongest edges of a circuit as a flow from the embedding to the logits."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.circuits.circuit import CircuitScores
from dcinterp.figures.base.style import THEMES, common_layout, see_through
from dcinterp.figures.circuits.circuit_bars import colour_of
from dcinterp.mechanism.circuit_drawing import Shape, drawn_ends
from dcinterp.mechanism.circuit_graph import Edge
from dcinterp.support.ranges import Count

RESULT = "CircuitScores"
KIND = "flow"


def plot(result: CircuitScores, *, theme: str = "light", k: Count = 30) -> go.Figure:
    """Nodes with the strongest edges between them; a band's width is the size of its score, its colour the branch.

    A head that attends for others and one that reads are two nodes: "L1H6 attention" and "L1H6". The query, key and
    value of a head are joined into the node that they serve. Edges of the circuit that carry no difference are left
    out. Pale bands lower m.

    Args:
        result: the scores.
        theme: "light" or "dark".
        k: how many edges at most, the largest first.
    """
    table = result.table()
    shape = Shape.of(result.edge_list)
    rows = table[table["kept"] & table["connected"]].head(k)
    names: list[str] = []

    def place(node: str) -> int:
        if node not in names:
            names.append(node)
        return names.index(node)

    links = []
    for row in rows.itertuples():
        label, size = f"{row.edge}: {float(row.mean):+z.3f}", abs(float(row.mean))  # type: ignore[arg-type]
        # An edge that lowers m is paler: a width has no sign.
        colour = see_through(colour_of(str(row.kind), theme), 0.6 if float(row.mean) >= 0 else 0.2)  # type: ignore[arg-type]
        for source, target in drawn_ends(Edge(str(row.source), str(row.target), str(row.kind)), shape):
            links.append((place(source), place(target), size, colour, label))
    columns = list(zip(*links, strict=True)) if links else [(), (), (), (), ()]
    flow = go.Sankey(
        arrangement="snap",
        node={"label": names, "pad": 10, "thickness": 12, "color": THEMES[theme].muted, "line": {"width": 0}},
        link=dict(zip(("source", "target", "value", "color", "label"), columns, strict=True)),
        textfont={"color": THEMES[theme].text, "size": 12},
    )
    return go.Figure(flow, common_layout(theme, 200 + 14 * len(rows)))
