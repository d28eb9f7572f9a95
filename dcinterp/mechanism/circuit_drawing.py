"""A circuit as nodes with places and the edges between them: what figures, the app and exported graphs all show.

    drawing = draw_circuit(result.edge_table(), kept)
    drawing.nodes[0].name, drawing.edges[0].score

Layers go from bottom to top, heads from left to right. Of a head, its scores (where the scores are composed), its
attention and what it reads and writes are nodes, one above the other, so that every composition edge leads upwards
within its layer. A query and a key serve the scores or the attention and are joined with them; a value serves what the
head reads. Nothing here needs a model: names and numbers of edges are enough.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from dcinterp.mechanism.circuit_graph import Edge, inner_links, on_paths

HEAD = re.compile(r"L(\d+)H(\d+)")
KINDS = ("embedding", "scores", "attention", "head", "weights", "mlp", "logits")
"""Of nodes: `scores` and `attention` are of the head that computes them, `head` is what it reads and writes."""


BESIDE = 0.9
"""Columns from the last head to the dynamic weights."""


@dataclass(frozen=True)
class Node:
    """A node and its place: x is the head (others stand beside the heads), y counts rows from the embedding upwards.

    label: what is written, the given name if it has one; layer: -1 for the embedding, the number of layers for the
    logits. group: the name of the group that it stands for; then `name` is that too.
    """

    name: str
    label: str
    kind: str
    layer: int
    x: float
    y: float
    pinned: bool = False
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """An edge of the drawing: its place in the list of all edges, the nodes that it joins, its kind and its score.

    connected: whether it is on a path of the circuit from the embedding to the logits; others carry no difference.
    """

    index: int
    name: str
    source: str
    target: str
    kind: str
    score: float
    connected: bool


@dataclass(frozen=True)
class Drawing:
    """What is drawn: nodes, and edges in the order of their size, the largest first. rows: names of y by number."""

    nodes: tuple[Node, ...]
    edges: tuple[Drawn, ...]
    rows: tuple[str, ...]

    def node(self, name: str) -> Node:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)


@dataclass(frozen=True)
class CircuitNotes:
    """What a person notes on a circuit: edges kept or left out by hand, pinned nodes, groups of nodes, own names.

    switched: edges that are kept although they are not among the highest, or left out although they are.
    groups: [(name, nodes)]; names: {node: its own name}.
    """

    switched: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def group_of(self, node: str) -> str | None:
        """The group that a node is in."""
        return next((name for name, members in self.groups if node in members), None)


@dataclass(frozen=True)
class Shape:
    """The size of a model, read off the names of its edges."""

    layers: int
    heads: int
    kv_heads: int
    stages: tuple[str, ...]

    @classmethod
    def of(cls, edges: Sequence[Edge]) -> Shape:
        """That of a list of all edges of a model."""
        return _shape(tuple(dict.fromkeys(edge.target for edge in edges)))


@cache
def _shape(targets: tuple[str, ...]) -> Shape:
    places = [(int(found[1]), int(found[2])) for target in targets if (found := re.match(r"L(\d+)H(\d+)\.q$", target))]
    kv_heads = sum(target.startswith("L0H") and target.endswith(".k") for target in targets)
    stages = tuple(stage for stage in ("pre", "post") if f"L0 {stage} weights" in targets)
    return Shape(1 + max(at[0] for at in places), 1 + max(at[1] for at in places), kv_heads, stages)


def drawn_ends(edge: Edge, shape: Shape) -> list[tuple[str, str]]:
    """The nodes of the drawing that an edge joins: a query, key or value is joined with the node that it serves.

    Where several heads share a key or value, it serves each of them, and the edge is drawn to each.
    """
    source, target = edge.nodes
    head, _, side = target.rpartition(".")
    if side not in ("q", "k", "v") or not head:
        return [(source, target)]
    kind = "" if side == "v" else " scores" if "pre" in shape.stages else " attention"
    if side == "q" or shape.kv_heads == shape.heads:
        return [(source, f"{head}{kind}")]
    layer, _, number = head.partition("H")
    each = shape.heads // shape.kv_heads
    return [(source, f"{layer}H{served}{kind}") for served in range(int(number) * each, (int(number) + 1) * each)]


def all_nodes(edges: Sequence[Edge]) -> tuple[str, ...]:
    """The nodes that drawings of a model's circuits can have."""
    shape = Shape.of(edges)
    return tuple(dict.fromkeys(name for edge in edges for ends in drawn_ends(edge, shape) for name in ends))


def connected_edges(edges: Sequence[Edge], kept: Sequence[bool]) -> list[bool]:
    """Which kept edges are on a path of kept edges from the embedding to the logits."""
    shape = Shape.of(edges)
    return on_paths(edges, inner_links(shape.layers, shape.heads, shape.kv_heads, shape.stages), kept)


def draw_circuit(
    edges: Sequence[Edge], scores: Sequence[float], kept: Sequence[bool], notes: CircuitNotes | None = None
) -> Drawing:
    """The drawing of the kept edges.

    Args:
        edges: all edges of the model; scores, kept: of each, with the edges that `notes` switches switched already.
        notes: names, pins and groups. The nodes of a group are drawn as one, and edges inside a group are left out.
    """
    notes = notes or CircuitNotes()
    shape = Shape.of(edges)
    paths = connected_edges(edges, kept)
    drawn, places = [], {name: _place(name, shape) for name in ("embedding", "logits", *notes.pinned)}
    for index, (edge, keep) in enumerate(zip(edges, kept, strict=True)):
        if not keep:
            continue
        for ends in drawn_ends(edge, shape):
            places |= {name: _place(name, shape) for name in ends if name not in places}
            source, target = (notes.group_of(name) or name for name in ends)
            if source != target:
                drawn.append(Drawn(index, edge.name, source, target, edge.kind, scores[index], paths[index]))
    drawn.sort(key=lambda each: -abs(each.score))
    return Drawing(tuple(_nodes(places, notes)), tuple(drawn), rows(shape))


def rows(shape: Shape) -> tuple[str, ...]:
    """What stands in each row, from the bottom to the top."""
    names = ["embedding"]
    for layer in range(shape.layers):
        names += [f"layer {layer} scores"] * ("pre" in shape.stages)
        names += [f"layer {layer} attention", f"layer {layer} heads", f"layer {layer} MLP"]
    return (*names, "logits")


def across(edges: Sequence[Edge]) -> float:
    """How far to the right a drawing of a model's circuits can go."""
    shape = Shape.of(edges)
    return shape.heads - 1 + (BESIDE if shape.stages else 0)


def _place(name: str, shape: Shape) -> tuple[str, int, float, float]:
    """(kind, layer, x, y) of a node."""
    named, last = rows(shape), shape.heads - 1
    if name in ("embedding", "logits"):
        layer = -1 if name == "embedding" else shape.layers
        return name, layer, last / 2, float(named.index(name))
    if name.startswith("MLP"):
        layer = int(name.split()[1])
        return "mlp", layer, last / 2, float(named.index(f"layer {layer} MLP"))
    if name.endswith("weights"):
        layer, stage = int(name.split()[0][1:]), name.split()[1]
        # Weights make a head's attention from scores, or what it reads from attention: they stand beside the former.
        row = named.index(f"layer {layer} {'scores' if stage == 'pre' else 'attention'}")
        return "weights", layer, last + BESIDE, float(row)
    found = HEAD.match(name)
    assert found is not None, name
    layer, head = int(found[1]), int(found[2])
    kind = name.partition(" ")[2] or "head"
    row = named.index(f"layer {layer} {'heads' if kind == 'head' else kind}")
    return kind, layer, float(head), float(row)


def _nodes(places: Mapping[str, tuple[str, int, float, float]], notes: CircuitNotes) -> list[Node]:
    """The nodes, those of a group as one in their middle."""
    alone, together = [], dict[str, list[str]]()
    for name, (kind, layer, x, y) in places.items():
        if group := notes.group_of(name):
            together.setdefault(group, []).append(name)
            continue
        alone.append(Node(name, notes.names.get(name, name), kind, layer, x, y, name in notes.pinned))
    for group, members in together.items():
        own = [places[name] for name in members]
        kind = own[0][0] if len({each[0] for each in own}) == 1 else "group"
        pinned = any(name in notes.pinned for name in members)
        x, y = sum(each[2] for each in own) / len(own), sum(each[3] for each in own) / len(own)
        layer = min(each[1] for each in own)
        alone.append(Node(group, notes.names.get(group, group), kind, layer, x, y, pinned, tuple(members)))
    return sorted(alone, key=lambda node: (node.y, node.x))
