"""The page of circuits: the drawing that can be clicked, circuits that are run at a click, and saved ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from workbench import models

HERE = Path(__file__).parent
HTML = """<div class="circuit"><div class="scroll"></div><div class="tip" hidden></div></div>"""

SHAPES = {"scores": "circle", "attention": "circle", "mlp": "diamond", "weights": "cross"}
"""Of nodes; all others are squares."""

LAYER = re.compile(r"^L\d+(?=H\d+$)")

_component = st.components.v2.component(
    "dcinterp_circuit",
    html=HTML,
    css=(HERE / "circuit.css").read_text(encoding="utf-8"),
    js=(HERE / "circuit.js").read_text(encoding="utf-8"),
)


def draw(
    result: Any,
    kept: Any,
    notes: Any,
    *,
    key: str,
    look: str,
    chosen: str | None,
    on_edge: Callable[[str], None],
    on_node: Callable[[str], None],
) -> tuple[str, str]:
    """Draw a circuit; edges that were taken out by hand stay to be seen, so that they can be put back.

    Args:
        result: a `CircuitScores`; kept: the edges of the circuit; notes: what is noted on it.
        key: of the element.
        look: "light" or "dark".
        chosen: the node that is looked at.
        on_edge, on_node: called with the name of what was clicked.

    Returns:
        What the marks mean, and the drawing in words.
    """

    def picked(what: str, then: Callable[[str], None]) -> Callable[[], None]:
        def call() -> None:
            name = st.session_state[key][what]
            if name:
                then(str(name))

        return call

    data, legend = payload(result, kept, notes, look, chosen)
    _component(key=key, data=data, on_edge_change=picked("edge", on_edge), on_node_change=picked("node", on_node))
    return legend, data["alternative"]


def payload(result: Any, kept: Any, notes: Any, look: str, chosen: str | None) -> tuple[dict[str, Any], str]:
    """What the browser needs, and the legend: nodes and edges of the drawing with their places, looks and words."""
    from dcinterp.figures.circuits.circuit_drawing import corners, look_of, short_name, words
    from dcinterp.mechanism.circuit_drawing import across

    on = result.drawing(kept, notes)
    out = kept.clone()
    for name in notes.switched:
        out[result.edges.index(name)] = True
    drawing = on if bool((out == kept).all()) else result.drawing(out, notes)
    connected = {edge.index: edge for edge in on.edges}
    widest = max((abs(edge.score) for edge in drawing.edges), default=1.0) or 1.0
    edges = []
    for edge in drawing.edges:
        away = edge.index not in connected
        seen = look_of(edge if away else connected[edge.index], look, widest)
        state = "taken out" if away else "" if connected[edge.index].connected else "on no path of the circuit"
        edges.append(
            {
                "name": edge.name,
                "corners": corners(drawing, edge),
                "title": f"{edge.name}\nscore {edge.score:+.3f}{f', {state}' if state else ''}",
                **seen,
                **({"dash": "off", "opacity": 0.75} if away else {}),
            }
        )
    nodes = [
        {
            "name": node.name,
            # The row of a head says its layer: names of two signs have room beside each other.
            "label": LAYER.sub("", short_name(node.label)) if node.label == node.name else node.label,
            "title": (node.label if node.label == node.name else f"{node.label} ({node.name})")
            + ", pinned" * node.pinned,
            "x": node.x,
            "y": node.y,
            "shape": SHAPES.get(node.kind, "square"),
            "open": node.kind in ("scores", "group"),
            "pinned": node.pinned,
            "chosen": node.name == chosen,
        }
        for node in drawing.nodes
    ]
    said = words(on, len(on.edges))
    data = {
        "nodes": nodes,
        "edges": edges,
        "rows": list(drawing.rows),
        "across": across(result.edge_list),
        "alternative": said["alternative"],
        "active": True,
    }
    return data, said["legend"]


def sizes(edges: int, always: Sequence[int]) -> list[int]:
    """The sizes that a slider offers: every small one, ever larger steps, and those of `always`."""
    found, size = set(always) | {edges}, 1.0
    while size < edges:
        found.add(round(size))
        size = max(size + 1, size * 1.06)
    return sorted(size for size in found if 1 <= size <= edges)


PROMPTS, SEEDS = (4, 200), (0, 9999)
"""Least and most that the page takes."""


def inputs_of(
    saved: Any,
    model: str,
    edges: Sequence[str],
    nodes: Sequence[str],
    words: Mapping[str, tuple[str, Mapping[str, str]]],
) -> dict[str, Any]:
    """What the inputs of the page hold for a saved circuit, by their keys.

    Args:
        saved: a `SavedCircuit`; model: the one that the page looks at; edges, nodes: those of that model.
        words: {key: the argument that it stands for, and its choices}; the first choice where the file says none.

    Raises:
        UserError: it is of another model, or the page has no inputs for what it holds.
    """
    from dcinterp.mechanism.circuit_file import read_notes, write_notes
    from dcinterp.mechanism.dataset import read_selection
    from dcinterp.support.arguments import require_fitting
    from dcinterp.support.errors import UserError, require_known

    if saved.model != model:
        raise UserError(f"This circuit is of {saved.model}; choose that model in the sidebar.")
    given = saved.arguments
    require_fitting("examples", given.get("examples"), str)
    selection = read_selection(given["examples"])
    if len(selection.tasks) != 1 or selection.shots or selection.split:
        raise UserError("This page shows circuits of one task, without further options; load this one in Python.")
    for what, value, (least, most) in (("n", selection.n, PROMPTS), ("seed", selection.seed, SEEDS)):
        if not least <= value <= most:
            raise UserError(f"This page takes {what} from {least} to {most}, and the circuit has {value}.")
    if saved.size > len(edges):
        raise UserError(f"The circuit has {saved.size:,} edges, and this model {len(edges):,}.")
    for edge in (*saved.notes.switched, *saved.edges):
        require_known("edge", edge, edges)
    notes = write_notes(saved.notes)
    read_notes(notes, nodes)
    held = {key: given.get(name, next(iter(choices))) for key, (name, choices) in words.items()}
    for key, (name, choices) in words.items():
        require_known(name, str(held[key]), choices)
    return held | {
        "task": selection.tasks[0].id,
        "prompts": selection.n,
        "prompts_seed": selection.seed,
        "edges_kept": saved.size,
        "switched": list(saved.notes.switched),
        "notes": notes,
    }


def ready(name: str, arguments: dict[str, Any]) -> Any:
    """The prompts of a circuit held ready, for this model as it is on disk."""
    return _ready(name, models.stamp(name), *(arguments[key] for key in ("examples", "counterfactual", "contrast")))


@st.cache_resource(max_entries=4, show_spinner="Running the prompts and their counterfactuals ...")
def _ready(name: str, stamp: int, examples: str, counterfactual: str, contrast: str) -> Any:
    from dcinterp.analysis.circuits.circuit_answers import ready_circuit

    bridge = models.model(name)
    with models.lock(name):
        return ready_circuit(bridge, examples, counterfactual=counterfactual, contrast=contrast, held_out=True)


def answers(name: str, live: Any, kept: Any, arguments: dict[str, Any]) -> Any:
    """What the model answers with these edges alone, now; as `circuit_answers` of the library."""
    import dcinterp

    names = [edge for edge, keep in zip(live.run.graph.names, kept.tolist(), strict=True) if keep]
    given = {key: arguments[key] for key in ("counterfactual", "contrast")}
    with models.lock(name):
        return dcinterp.circuit_answers(
            models.model(name), arguments["examples"], names, **given, held_out=True, ready=live
        )
