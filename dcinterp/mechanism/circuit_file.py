"""A circuit as somebody left it, as a JSON file: what ranked its edges, its size, and what was noted on it.

    text = SavedCircuit("dcformer++", {"examples": "task0 n=8"}, 89, notes, kept).to_json()
    SavedCircuit.from_json(text).notes.pinned

Notes have a form that a person writes, too, one line each:

    pin L1H6
    name L1H6 attention: finds the other mention
    group borrowers: L1H1, L1H4
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dcinterp.mechanism.circuit_drawing import CircuitNotes
from dcinterp.support.errors import UserError, nearest

KIND, VERSION = "dcinterp circuit", 1


@dataclass(frozen=True)
class SavedCircuit:
    """A circuit with its notes.

    arguments: of `dcinterp.circuit`, as plain data; size: how many of the highest edges; edges: {name: score} of those
    that were kept, with the switched ones.
    """

    model: str
    arguments: Mapping[str, Any]
    size: int
    notes: CircuitNotes
    edges: Mapping[str, float]

    def to_json(self) -> str:
        """The text of the file."""
        notes = self.notes
        record = {
            "kind": KIND,
            "version": VERSION,
            "model": self.model,
            "arguments": dict(self.arguments),
            "size": self.size,
            "switched": list(notes.switched),
            "pinned": list(notes.pinned),
            "groups": [{"name": name, "nodes": list(nodes)} for name, nodes in notes.groups],
            "names": dict(notes.names),
            "edges": [{"name": name, "score": score} for name, score in self.edges.items()],
        }
        return json.dumps(record, indent=1)

    @classmethod
    def from_json(cls, text: str) -> SavedCircuit:
        """Read back what `to_json` wrote.

        Raises:
            UserError: it is not such a text, or one of a later version.
        """
        try:
            record = json.loads(text)
            if record["kind"] != KIND:
                raise KeyError("kind")
            if record["version"] > VERSION:
                raise UserError(f"This circuit was saved by a later version ({record['version']}); update dcinterp.")
            notes = CircuitNotes(
                tuple(map(str, record["switched"])),
                tuple(map(str, record["pinned"])),
                tuple((str(group["name"]), tuple(map(str, group["nodes"]))) for group in record["groups"]),
                {str(node): str(name) for node, name in record["names"].items()},
            )
            edges = {str(edge["name"]): float(edge["score"]) for edge in record["edges"]}
            return cls(str(record["model"]), dict(record["arguments"]), int(record["size"]), notes, edges)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as problem:
            raise UserError("This is not a saved circuit; give a JSON file that the page Circuit wrote.") from problem


def read_notes(text: str, nodes: Collection[str], switched: Collection[str] = ()) -> CircuitNotes:
    """Notes as a person writes them.

    Args:
        text: lines of `pin NODE`, `name NODE: NAME` and `group NAME: NODE, NODE`.
        nodes: all nodes of the model.
        switched: edges put in or taken out by hand.

    Raises:
        UserError: a line is none of these, or names a node that there is not.
    """
    pinned: list[str] = []
    groups: list[tuple[str, tuple[str, ...]]] = []
    names: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        verb, _, rest = line.partition(" ")
        before, colon, after = (part.strip() for part in rest.partition(":"))
        if verb == "pin" and rest and not colon:
            pinned.append(_known(rest.strip(), nodes))
        elif verb == "name" and before and after:
            names[_known(before, nodes)] = after
        elif verb == "group" and before and after:
            members = tuple(_known(each.strip(), nodes) for each in after.split(",") if each.strip())
            taken = {member for _, others in groups for member in others} & set(members)
            if taken:
                raise UserError(f"{min(taken)} is in two groups; leave it in one.")
            if before in nodes or before in dict(groups):
                raise UserError(f"A group cannot be called {before!r}, which is taken; give it another name.")
            groups.append((before, members))
        else:
            raise UserError(
                f"{line!r} is not a note; write 'pin L1H6', 'name L1H6: what it does' or 'group NAME: L1H6, L1H1'."
            )
    return CircuitNotes(tuple(switched), tuple(dict.fromkeys(pinned)), tuple(groups), names)


def write_notes(notes: CircuitNotes) -> str:
    """The lines that `read_notes` reads."""
    lines = [f"pin {node}" for node in notes.pinned]
    lines += [f"name {node}: {name}" for node, name in notes.names.items()]
    lines += [f"group {name}: {', '.join(members)}" for name, members in notes.groups]
    return "\n".join(lines)


def _known(node: str, nodes: Collection[str]) -> str:
    if node not in nodes:
        raise UserError(f"There is no node {node!r} in this model; {nearest(node, nodes)}")
    return node
