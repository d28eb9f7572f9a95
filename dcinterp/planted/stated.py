"""Stated circuits: what a trained model is to compute, by which borrowed attention, before it is trained to do so.

    <bos> k0v3 k2v1 k4v4 k1v0 ?k2   ->  a1          "lookup": the value of the fact with the asked key

A fact is one word, a key with a value, and the last word asks for a key. Layer by layer a head (`head_from`) finds the
fact, and another (`head_to`) uses what it found, by one branch of one stage: a hop. Three tasks:

    lookup   one hop; the answer is the value of the fact that is asked for
    choose   one hop by one of two borrowers; ?k2a asks for a-words and ?k2b for b-words, each has its own borrower
    chain    two hops; a value is a key again, and the answer is the value of the fact with that key

The high-level model has one variable a hop: the place of the fact that it found. `Asked.answer` says what the answer is
when some of them have the values of another prompt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dcinterp.support.errors import UserError

FACTS, KEYS, VALUES = 4, 5, 5
SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>"}
TASKS = ("lookup", "choose", "chain")
STAGES = ("pre", "post")


@dataclass(frozen=True)
class Hop:
    """One borrowing: `head_to` uses what `head_from` of the same layer found. case: of "choose", when it does so."""

    layer: int
    stage: str
    branch: str
    head_from: int
    head_to: int
    case: str = ""

    def edges(self, stages: Sequence[str] = STAGES) -> tuple[str, ...]:
        """The composition edges that carry it, as circuits name them, in a model that composes at these stages.

        Behind the softmax, the finder's own scores make its attention, which is borrowed. Before it, the finder's
        scores are borrowed, and the borrower then uses its own attention.
        """
        f, t = f"L{self.layer}H{self.head_from}", f"L{self.layer}H{self.head_to}"
        shared = f"{f} -> {t} ({self.stage} {self.branch})"
        if self.stage == "pre":
            return shared, f"{t} -> {t} (post skip)"
        return (f"{f} -> {f} (pre skip)", shared) if "pre" in stages else (shared,)


@dataclass(frozen=True)
class Asked:
    """A prompt, with what the high-level model needs to know of it: keys and values by place, the key asked for."""

    task: str
    keys: tuple[int, ...]
    values: tuple[int, ...]
    key: int
    case: str

    @property
    def prompt(self) -> str:
        facts = [f"k{key}v{value}" for key, value in zip(self.keys, self.values, strict=True)]
        return " ".join(["<bos>", *facts, f"?k{self.key}{self.case}"])

    def places(self, found: Mapping[int, int] | None = None) -> list[int]:
        """Where each hop finds its fact. found: places that are given, by the number of the hop."""
        places, key = list[int](), self.key
        for number in range(2 if self.task == "chain" else 1):
            places.append((found or {}).get(number, self.keys.index(key)))
            key = self.values[places[-1]]
        return places

    def answer(self, found: Mapping[int, int] | None = None) -> str:
        """The right answer, or with some hops finding the given places instead, what the circuit would answer."""
        return f"{self.case or 'a'}{self.values[self.places(found)[-1]]}"


@dataclass(frozen=True)
class Stated:
    """A circuit before training: its task, its hops, and the model that is to hold it.

    traits: fields of the model's config that differ from those of the others (trained_truth.config_of). alone: of the
    rows of a training batch, the share with everything outside the circuit patched.
    """

    name: str
    task: str
    hops: tuple[Hop, ...]
    layers: int = 2
    heads: int = 4
    width: int = 32
    seed: int = 0
    traits: Mapping[str, Any] = field(default_factory=dict)
    alone: float = 0.15

    def draw(self, draw: random.Random) -> Asked:
        """A random prompt."""
        if self.task == "chain":
            # The keys in a ring: every value is the key of another fact.
            ring = draw.sample(range(KEYS), FACTS)
            follows = dict(zip(ring, [*ring[1:], ring[0]], strict=True))
            keys = tuple(draw.sample(ring, FACTS))
            return Asked(self.task, keys, tuple(follows[key] for key in keys), draw.choice(keys), "")
        keys = tuple(draw.sample(range(KEYS), FACTS))
        values = tuple(draw.choices(range(VALUES), k=FACTS))
        return Asked(self.task, keys, values, draw.choice(keys), draw.choice("ab") if self.task == "choose" else "")

    def in_use(self, case: str) -> list[tuple[int, Hop]]:
        """The hops that make the answer to a question of this case, each with the number of its variable."""
        used = [hop for hop in self.hops if hop.case in ("", case)]
        return list(enumerate(used))

    def edges(self, case: str = "") -> tuple[str, ...]:
        """The composition edges that make the answers of a case."""
        return tuple(dict.fromkeys(edge for _, hop in self.in_use(case) for edge in hop.edges(self.stages)))

    @property
    def stages(self) -> tuple[str, ...]:
        """Where the model composes."""
        return tuple(self.traits.get("compose_stages", STAGES))

    def inside(self) -> tuple[str, ...]:
        """The edges of the stream between the circuit's own nodes; all others are outside, and are to do nothing.

        Dynamic weights may read the embedding: it says what is asked, and where there is something to share.
        """
        found, writers = list[str](), ["embedding"]
        for layer in sorted({hop.layer for hop in self.hops}):
            here = [hop for hop in self.hops if hop.layer == layer]
            for hop in here:
                finder = f"L{layer}H{hop.head_from}"
                found += [f"{writer} -> {finder}.q" for writer in writers]
                found += [f"embedding -> {finder}.k", f"embedding -> L{layer}H{hop.head_to}.v"]
                found += [f"embedding -> L{layer} {stage} weights" for stage in self.stages]
            writers += [f"L{layer}H{hop.head_to}" for hop in here]
        last = max(hop.layer for hop in self.hops)
        found += [f"L{hop.layer}H{hop.head_to} -> logits" for hop in self.hops if hop.layer == last]
        return tuple(dict.fromkeys(found))

    def to_json(self) -> str:
        """As written beside the weights."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Stated:
        """Read back what `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields | {"hops": tuple(Hop(**hop) for hop in fields["hops"])})


def vocabulary() -> tuple[str, ...]:
    """All words; the same for every stated circuit."""
    facts = [f"k{key}v{value}" for key in range(KEYS) for value in range(VALUES)]
    asked = [f"?k{key}{case}" for case in ("", "a", "b") for key in range(KEYS)]
    return (*SPECIAL.values(), *facts, *asked, *(f"{case}{value}" for case in "ab" for value in range(VALUES)))


def words_of_stated() -> PreTrainedTokenizerFast:
    """One token a word; words are separated by spaces."""
    numbers = {word: number for number, word in enumerate(vocabulary())}
    core = Tokenizer(models.WordLevel(numbers, unk_token=SPECIAL["unk_token"]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=FACTS + 2, **SPECIAL)


def _one(name: str, layer: int, stage: str, branch: str, head_from: int, head_to: int, **fields: Any) -> Stated:
    return Stated(name, "lookup", (Hop(layer, stage, branch, head_from, head_to),), **fields)


def _two(name: str, layer: int, stage: str, branch: str, finder: int, readers: Sequence[int], **fields: Any) -> Stated:
    hops = tuple(Hop(layer, stage, branch, finder, to, case) for case, to in zip("ab", readers, strict=True))
    return Stated(name, "choose", hops, **fields)


def _chain(name: str, first: Hop, second: Hop, **fields: Any) -> Stated:
    return Stated(name, "chain", (first, second), width=48, **fields)


ONLY_GATES = {"compose_stages": ["post"], "compose_skip": False, "compose_projection": False}
"""Heads use no attention but what a gate lets through."""

_TABLE = (
    _one("lookup-post-kp", 0, "post", "kp", 0, 1),
    _one("lookup-post-qp", 1, "post", "qp", 2, 0),
    _one("lookup-pre-kp", 1, "pre", "kp", 3, 1),
    _one("lookup-pre-qp", 0, "pre", "qp", 1, 2),
    _two("choose-post-qp", 0, "post", "qp", 3, (0, 2)),
    _two("choose-pre-qp", 1, "pre", "qp", 0, (2, 3), alone=0.6),
    _one("lookup-static", 0, "post", "static", 3, 0, traits={"compose_static": True}, alone=0.6),
    _one("lookup-gate-qg", 1, "post", "qg", 2, 2, traits=ONLY_GATES, alone=0.6),
    _chain("chain-post", Hop(0, "post", "kp", 1, 0), Hop(1, "post", "qp", 2, 3)),
    _chain("chain-pre-post", Hop(0, "pre", "qp", 3, 1), Hop(1, "post", "kp", 0, 2)),
    _chain("chain-pre", Hop(0, "pre", "kp", 2, 0), Hop(1, "pre", "qp", 1, 3)),
)
STATED: Mapping[str, Stated] = {each.name: each for each in _TABLE}
"""The circuits that models are trained to; a new one is one line. Those of two hops have not reached the marks yet."""


def stated(name: str) -> Stated:
    """A stated circuit by name.

    Raises:
        UserError: there is none of this name.
    """
    if name not in STATED:
        from dcinterp.support.errors import nearest

        raise UserError(f"There is no stated circuit {name!r}; {nearest(name, STATED)}")
    return STATED[name]
