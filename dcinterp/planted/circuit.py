"""What a planted circuit is: heads with roles, the questions it answers, and the true edges of each answer."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dcinterp.model.compose.branch_table import HOOKS
from dcinterp.planted.blueprint import LAYERS, Blueprint
from dcinterp.planted.words import FACTS, NAMES, OBJECTS
from dcinterp.support.former_names import former_name

Heads = Mapping[str, Sequence[int]]
"""Roles in layer 1 and the heads that play them."""


class Edge(NamedTuple):
    """The attention of `head_from`, used by `head_to` with its values, through one branch of post-composition.

    `sign` says whether it raises or lowers the logit difference of target and foil.
    """

    layer: int
    branch: str
    head_from: int
    head_to: int
    sign: int


@dataclass(frozen=True)
class PlantedExample:
    """A prompt with its only right answer (`target`), a wrong one (`foil`) and where the answer is to be read."""

    circuit: str
    question: str
    prompt: str
    target: str
    foil: str
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Truth:
    """The heads, branches and edges that make one answer, among all that the model has.

    edges [layer, branch, head_from, head_to]: +1 raises, -1 lowers the logit difference, 0 has no effect on it.
    """

    edges: Int[Tensor, "layer branch head_from head_to"]

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
    def of(cls, edges: Sequence[Edge], heads: int) -> Truth:
        """From the list of edges of a model with this many heads a layer."""
        signs = torch.zeros(LAYERS, len(HOOKS), heads, heads, dtype=torch.int8)
        for edge in edges:
            signs[edge.layer, HOOKS.index(edge.branch), edge.head_from, edge.head_to] = edge.sign
        return cls(signs)


class Circuit(Protocol):
    """A kind of circuit; a module of `dcinterp.planted.circuits` that defines these names is one."""

    NAME: str
    SUMMARY: str
    QUESTIONS: tuple[str, ...]
    ROLES: tuple[str, ...]

    def build(self, plan: Blueprint, heads: Heads, ranks: Sequence[int]) -> None:
        """Plant the heads of layer 1; `ranks` are the ranks of the dynamic projection that it may use."""

    def ask(self, draw: random.Random) -> PlantedExample:
        """A random example that it answers."""

    def edges(self, question: str, heads: Heads) -> list[Edge]:
        """The edges of layer 1 that make the answer to a question."""


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


def copy_by(plan: Blueprint, head: int, meaning: Mapping[str, str], weight: float) -> None:
    """Make a head of layer 1 add the logit of `meaning[thing]` (its kind, say) for the thing that it attends to."""
    for answer in dict.fromkeys(meaning.values()):
        things = [thing for thing, value in meaning.items() if value == answer]
        plan.copy(1, head, plan.stream.any_of("token", things), plan.stream.at("answer", answer), weight)


def grid_edges(branch: str, sources: Sequence[int], to: Sequence[int], sign: int = 1) -> list[Edge]:
    """Edges of layer 1 from each of `sources` to each of `to`."""
    return [Edge(1, branch, f, h, sign) for f in sources for h in to]


def own_edges(branch: str, heads: Sequence[int], sign: int = 1) -> list[Edge]:
    """Edges of layer 1 from heads to themselves: their own attention, or their gate."""
    return [Edge(1, branch, h, h, sign) for h in heads]


def facts(draw: random.Random) -> tuple[list[str], list[str]]:
    """Random people and the thing that each of them has, all different."""
    return draw.sample(NAMES, FACTS), draw.sample(OBJECTS, FACTS)


def prompt(names: Sequence[str], things: Sequence[str], question: str, asked: Sequence[int]) -> str:
    """The facts, the question word and the asked names as one text."""
    words = [word for pair in zip(names, things, strict=True) for word in pair]
    return " ".join(["<bos>", *words, question, *(names[number] for number in asked)])


def place_of(fact: int) -> int:
    """Position of the thing of a fact."""
    return 2 + 2 * fact
