"""What a planted circuit is: heads with roles, the questions it answers, and the true edges of each answer."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dcinterp.model.compose.branch_table import HOOKS, NAMES
from dcinterp.planted.blueprint import LAYERS, Blueprint
from dcinterp.planted.words import FACTS, OBJECTS
from dcinterp.planted.words import NAMES as PEOPLE
from dcinterp.support.former_names import former_name

Heads = Mapping[str, Sequence[int]]
"""Roles and the heads that play them, in layer 1 unless the circuit says otherwise."""


class Edge(NamedTuple):
    """The attention (in stage "pre", the scores) of `head_from`, used by `head_to`, through one branch of composition.

    `sign` says whether it raises or lowers the logit difference of target and foil.
    """

    layer: int
    branch: str
    head_from: int
    head_to: int
    sign: int
    stage: str = "post"


@dataclass(frozen=True)
class PlantedExample:
    """A prompt with its only right answer (`target`), a wrong one (`foil`) and where the answer is to be read.

    case: what the true edges depend on, where that is not the question.
    """

    circuit: str
    question: str
    prompt: str
    target: str
    foil: str
    sources: tuple[int, ...]
    case: str = ""


@dataclass(frozen=True)
class Truth:
    """The heads, branches and edges that make one answer, among all that the model has.

    edges [layer, branch, head_from, head_to]: of composition after the softmax; pre: of that before it (scores). +1
    raises, -1 lowers the logit difference, 0 has no effect on it. The other properties are about `edges`.
    """

    edges: Int[Tensor, "layer branch head_from head_to"]
    pre: Int[Tensor, "layer branch head_from head_to"]

    @property
    def stages(self) -> dict[str, Int[Tensor, "layer branch head_from head_to"]]:
        """The signs by stage."""
        return {"pre": self.pre, "post": self.edges}

    def names(self) -> dict[str, int]:
        """The true edges as a circuit names them, such as "L1H6 -> L1H1 (post kp)", with their signs."""
        found = {}
        for stage, signs in self.stages.items():
            for place in signs.nonzero().tolist():
                layer, branch, f, t = place
                found[f"L{layer}H{f} -> L{layer}H{t} ({stage} {NAMES[branch]})"] = int(signs[tuple(place)])
        return found

    @property
    def attention(self) -> Bool[Tensor, "layer head"]:
        """Heads whose attention is used, by the head itself or by others."""
        return self.edges.ne(0).any(3).any(1)

    @property
    def output(self) -> Int[Tensor, "layer head"]:
        """Sign of the effect of a head's output on the logit difference; 0 for a head that is silenced."""
        return self.edges.sum((1, 2)).sign()

    @property
    def branches(self) -> Bool[Tensor, "layer branch"]:
        """Branches that carry at least one edge."""
        return self.edges.ne(0).any(3).any(2)

    finds = former_name("finds", "attention")
    writes = former_name("writes", "output")

    @classmethod
    def of(cls, edges: Sequence[Edge], heads: int, layers: int = LAYERS) -> Truth:
        """From the list of edges of a model with so many heads a layer, and layers."""
        signs = {stage: torch.zeros(layers, len(HOOKS), heads, heads, dtype=torch.int8) for stage in ("pre", "post")}
        for edge in edges:
            signs[edge.stage][edge.layer, HOOKS.index(edge.branch), edge.head_from, edge.head_to] = edge.sign
        return cls(signs["post"], signs["pre"])


class Circuit(Protocol):
    """A kind of circuit; a module of `dcinterp.planted.circuits` that defines these names is one.

    It may also define what `Traits` has, where it differs from that.
    """

    NAME: str
    SUMMARY: str
    QUESTIONS: tuple[str, ...]
    ROLES: tuple[str, ...]

    def build(self, plan: Blueprint, heads: Heads, ranks: Sequence[int]) -> None:
        """Plant the heads behind layer 0; `ranks` are the ranks of the dynamic projection that it may use."""

    def ask(self, draw: random.Random) -> PlantedExample:
        """A random example that it answers."""

    def edges(self, question: str, heads: Heads) -> list[Edge]:
        """The edges behind layer 0 that make the answer to a question (or to a case of it)."""


@dataclass(frozen=True)
class Traits:
    """What sets a kind of circuit apart; most have none of it.

    LAYERS: of its model. STAGES: of composition that its model has. LAYER_OF: the layer of each role that is not in
    layer 1. ALONE: whether it needs a model of its own (it answers a question word of another circuit). BACKUPS:
    whether its true edges back each other up, so that only removing several of them at once shows what they do.
    """

    LAYERS: int = LAYERS
    STAGES: tuple[str, ...] = ("post",)
    LAYER_OF: Mapping[str, int] = field(default_factory=dict)
    ALONE: bool = False
    BACKUPS: bool = False

    @classmethod
    def of(cls, kind: Circuit) -> Traits:
        """Those of a kind of circuit."""
        return cls(**{each.name: getattr(kind, each.name) for each in fields(cls) if hasattr(kind, each.name)})


def look_for_asked(plan: Blueprint, head: int, questions: Sequence[str], name_from: str = "token") -> None:
    """Make a head of layer 1 a finder: from the asked name to what that person has, for its own questions only.

    Score = name matches + position holds a thing, against 2.3 - (own question asked) on <bos>: all three are needed,
    and half of the first or of the last is enough, so that a copy of a head of layer 0 backs up the other.

    Args:
        plan: of the model.
        head: of layer 1.
        questions: that wake it.
        name_from: space of the query that holds the asked name, "token" (this word) or "previous" (the one before).
    """
    s = plan.stream
    plan.look_for_name(1, head, query=name_from, key="previous")
    plan.look(1, head, s.always(), s.any_of("token", OBJECTS))
    plan.rest_on_bos(1, head, 2.3)
    plan.look(1, head, s.any_of("question", questions), s.at("token", "<bos>"), -1.0)


def find_for_others(plan: Blueprint, head: int, questions: Sequence[str], name_from: str = "token") -> None:
    """Make a head of layer 1 a finder (see `look_for_asked`) whose own output has no effect."""
    look_for_asked(plan, head, questions, name_from)
    plan.copy(1, head, plan.stream.any_of("token", OBJECTS), plan.stream.dead(head))


def copy_by(plan: Blueprint, head: int, meaning: Mapping[str, str], weight: float, layer: int = 1) -> None:
    """Make a head add the logit of `meaning[thing]` (its kind, say) for the thing that it attends to."""
    for answer in dict.fromkeys(meaning.values()):
        things = [thing for thing, value in meaning.items() if value == answer]
        plan.copy(layer, head, plan.stream.any_of("token", things), plan.stream.at("answer", answer), weight)


def grid_edges(
    branch: str, sources: Sequence[int], to: Sequence[int], sign: int = 1, *, layer: int = 1, stage: str = "post"
) -> list[Edge]:
    """Edges from each of `sources` to each of `to`."""
    return [Edge(layer, branch, f, h, sign, stage) for f in sources for h in to]


def own_edges(branch: str, heads: Sequence[int], sign: int = 1, *, layer: int = 1, stage: str = "post") -> list[Edge]:
    """Edges from heads to themselves: their own attention, or their gate."""
    return [Edge(layer, branch, h, h, sign, stage) for h in heads]


def facts(draw: random.Random) -> tuple[list[str], list[str]]:
    """Random people and the thing that each of them has, all different."""
    return draw.sample(PEOPLE, FACTS), draw.sample(OBJECTS, FACTS)


def prompt(names: Sequence[str], things: Sequence[str], question: str, asked: Sequence[int]) -> str:
    """The facts, the question word and the asked names as one text."""
    words = [word for pair in zip(names, things, strict=True) for word in pair]
    return " ".join(["<bos>", *words, question, *(names[number] for number in asked)])


def place_of(fact: int) -> int:
    """Position of the thing of a fact."""
    return 2 + 2 * fact
