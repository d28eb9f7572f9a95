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
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dcinterp.mechanism.circuit_drawing import CircuitNotes
from dcinterp.support.arguments import require_fitting
from dcinterp.support.errors import UserError, nearest, reason
from dcinterp.support.json_files import parse_json
from dcinterp.support.ranges import Count
from dcinterp.support.text import shown

KIND, VERSION = "dcinterp circuit", 1
FIELDS = {
    "version": int,
    "model": str,
    "arguments": dict[str, Any],
    "size": Count,
    "switched": list[str],
    "pinned": list[str],
    "groups": list[Any],
    "names": dict[str, Any],
    "edges": list[Any],
}


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
            record = parse_json(text)
            if not isinstance(record, dict) or record.get("kind") != KIND:
                raise UserError(f"its kind is not {KIND!r}")
            if type(record.get("version")) is int and record["version"] > VERSION:
                raise _Later(f"This circuit was saved by a later version ({record['version']}); update dcinterp.")
            return cls._checked(record)
        except _Later:
            raise
        except (ValueError, OverflowError) as problem:
            raise UserError(
                f"This is not a saved circuit ({reason(problem)}); give a JSON file that the page Circuit wrote."
            ) from problem

    @classmethod
    def _checked(cls, record: Mapping[str, Any]) -> SavedCircuit:
        for name, kind in FIELDS.items():
            require_field(record, name, kind)
        for name, value in record["arguments"].items():
            require_fitting(f"arguments.{name}", value, str | int | float | bool | None)
        groups = [
            (require_field(each, "name", str), require_field(each, "nodes", list[str])) for each in record["groups"]
        ]
        edges = [(require_field(each, "name", str), require_field(each, "score", float)) for each in record["edges"]]
        for name, score in edges:
            if not math.isfinite(score):
                raise UserError(f"the score of {shown(name, 40)} is {score}")
        for node, name in record["names"].items():
            require_fitting(f"the name of {shown(node, 40)}", name, str)
        for what, names in (("edges", edges), ("groups", groups)):
            if len(dict(names)) < len(names):
                raise UserError(f"two of its {what} have the same name")
        notes = CircuitNotes(
            tuple(record["switched"]),
            tuple(record["pinned"]),
            tuple((name, tuple(nodes)) for name, nodes in groups),
            record["names"],
        )
        scores = {name: float(score) for name, score in edges}
        return cls(record["model"], record["arguments"], record["size"], notes, scores)


class _Later(UserError):
    """A file of a later version."""


def _pairs(records: Any, what: str, kind: Any) -> list[tuple[str, Any]]:
    return [(require_field(each, "name", str), require_field(each, what, kind)) for each in records]


def require_field(record: Any, name: str, kind: Any) -> Any:
    """A field of a saved circuit.

    Raises:
        UserError: it is missing, or of another kind.
    """
    if not isinstance(record, Mapping) or name not in record:
        raise UserError(f"there is no field {name!r}")
    require_fitting(name, record[name], kind)
    return record[name]


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
