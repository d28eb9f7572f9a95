"""A circuit as the JSON of an attribution graph, which the viewers of circuit-tracer and Neuronpedia read.

    {"metadata": {...}, "qParams": {...}, "nodes": [...], "links": [...]}         schema_version 1

Fields and identifiers follow circuit-tracer 0.5.0 (`circuit_tracer/frontend/graph_models.py`): a node is
"layer_number_position", its `feature` is the Cantor pairing of layer and number, a link has a weight, and `influence`
is cumulative: the share of the whole that this node and all larger ones have. `tests/parity/test_circuit_tracer.py`
holds a graph to its models and to the code by which its viewer reads files. What that format has no word for:

- Our nodes are heads and MLPs, not features of a transcoder, and `feature_type` says so. Viewers that look for a page
  of examples of a feature find none.
- A node stands for all positions; it is put at the last token, where the answer is read.
- An edge into a key or value that several heads share leads to each of them, with its whole score.
- Several edges may join the same two nodes (as query and as key, or by several branches). A link holds their sum, and
  under `edges` each of them with its own score.
- The logits node is a difference of two logits and has no probability; the viewer fails on one whose text has none, so
  that the text ends in "(p=n/a)".
- Groups are written as `supernodes`. circuit-tracer's own page takes these from its address alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dcinterp.mechanism.circuit_drawing import HEAD, CircuitNotes, Drawing, Node, Shape
from dcinterp.support.errors import UserError

TYPES = {
    "embedding": "token embeddings",
    "scores": "attention scores",
    "attention": "attention",
    "head": "attention head",
    "weights": "dynamic weights",
    "mlp": "mlp",
    "logits": "logit",
}
"""`feature_type` of nodes. "embedding" is left to single tokens: viewers write the token of the position on it."""


def attribution_graph(
    drawing: Drawing,
    shape: Shape,
    *,
    slug: str,
    model: str,
    tokens: Sequence[str],
    prompt: str,
    answer: str,
    notes: CircuitNotes | None = None,
    about: str = "",
) -> dict[str, Any]:
    """The graph as JSON data.

    Args:
        drawing: of the circuit, without its groups drawn as one (`CircuitNotes.groups`): they are supernodes here.
        shape: of the model.
        slug: a name for the graph; model: `scan` in this format; tokens, prompt: of the prompt that it is shown with.
        answer: what the logits node stands for.
        notes: pinned nodes, groups and names.
        about: a sentence that says what the weights are.
    """
    notes, last = notes or CircuitNotes(), max(len(tokens) - 1, 0)
    ids = {node.name: _node_id(node, shape, last) for node in drawing.nodes}
    influence = _influence(drawing)
    return {
        "metadata": {
            "slug": slug,
            "scan": model,
            "transcoder_list": [],
            "prompt_tokens": list(tokens),
            "prompt": prompt,
            "node_threshold": None,
            "schema_version": 1,
            "title_prefix": "",
            "info": {"generator": {"name": "dcinterp"}, "description": about},
        },
        "qParams": {
            "pinnedIds": [ids[name] for name in notes.pinned if name in ids],
            "supernodes": [
                [name, *(ids[member] for member in members if member in ids)]
                for name, members in notes.groups
                if any(member in ids for member in members)
            ],
            "linkType": "both",
            "clickedId": "",
            "sg_pos": "",
        },
        "nodes": [_node(node, shape, last, answer, influence[node.name]) for node in drawing.nodes],
        "links": _links(drawing, ids),
    }


def write_attribution_graph(graph: dict[str, Any], path: str | Path) -> Path:
    """Write a graph to a file.

    Raises:
        UserError: the folder of the file does not exist, or the path is a folder.
    """
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{path} cannot be written; give the name of a JSON file in a folder that exists.")
    path.write_text(json.dumps(graph, indent=1), encoding="utf-8")
    return path


def _links(drawing: Drawing, ids: dict[str, str]) -> list[dict[str, Any]]:
    together: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for edge in drawing.edges:
        part = {"name": edge.name, "kind": edge.kind, "weight": edge.score}
        together.setdefault((edge.source, edge.target), []).append(part)
    return [
        {"source": ids[a], "target": ids[b], "weight": sum(part["weight"] for part in parts), "edges": parts}
        for (a, b), parts in together.items()
    ]


def _influence(drawing: Drawing) -> dict[str, float]:
    """Of every node: what it and all larger ones have of the whole; a viewer that prunes keeps nodes up to a share."""
    sizes = {node.name: _through(drawing, node.name) for node in drawing.nodes}
    total, found, so_far = sum(sizes.values()) or 1.0, dict[str, float](), 0.0
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        so_far += sizes[name]
        found[name] = min(so_far / total, 1.0)
    return found


def _through(drawing: Drawing, node: str) -> float:
    """The size of the edges that enter or leave a node, whichever is more."""
    entering = sum(abs(edge.score) for edge in drawing.edges if edge.target == node)
    return max(entering, sum(abs(edge.score) for edge in drawing.edges if edge.source == node))


def _node(node: Node, shape: Shape, last: int, answer: str, influence: float) -> dict[str, Any]:
    layer, number = _address(node, shape)
    # Ends have a number of their own; other nodes one of the pair of layer and number (Cantor's).
    start = {"embedding": "E", "logits": "L"}.get(node.kind, str(layer))
    paired = number if start in ("E", "L") else (layer + number) * (layer + number + 1) // 2 + number
    return {
        "node_id": _node_id(node, shape, last),
        "feature": paired,
        "layer": "E" if start == "E" else str(layer),
        "ctx_idx": last,
        "feature_type": TYPES[node.kind],
        "token_prob": 0.0,
        "is_target_logit": node.kind == "logits",
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": f"{start}_{number}-0",
        "clerp": (node.label if node.label != node.name else _words(node, answer))
        + (" (p=n/a)" if node.kind == "logits" else ""),
        "influence": influence,
        "activation": None,
    }


def _words(node: Node, answer: str) -> str:
    return {"logits": answer, "embedding": "embeddings of all tokens"}.get(node.kind, node.name)


def _node_id(node: Node, shape: Shape, last: int) -> str:
    layer, number = _address(node, shape)
    return f"{'E' if node.kind == 'embedding' else layer}_{number}_{last}"


def _address(node: Node, shape: Shape) -> tuple[int, int]:
    """(layer, number within the layer): the logits come a layer after the last, as in circuit-tracer."""
    if node.kind in ("embedding", "logits"):
        return (-1, 0) if node.kind == "embedding" else (shape.layers + 1, 0)
    if node.kind == "mlp":
        return node.layer, 3 * shape.heads
    if node.kind == "weights":
        return node.layer, 3 * shape.heads + 1 + ("post" in node.name)
    found = HEAD.match(node.name)
    assert found is not None, node.name
    return node.layer, ("head", "attention", "scores").index(node.kind) * shape.heads + int(found[2])
