"""`plant`: a DCFormer with a known circuit inside, and the truth about every answer it gives."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from dcinterp.model.build import count_parameters
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.planted.background import MLP_WIDTH, NORM_EPS, add_background
from dcinterp.planted.blueprint import HEAD_WIDTH, Blueprint, add_noise
from dcinterp.planted.circuit import Edge, PlantedExample, Traits, Truth
from dcinterp.planted.circuits import FORMER, circuits, together
from dcinterp.planted.decoys import look_back, plant_decoys
from dcinterp.planted.words import NAMES, QUESTIONS, TOKEN_ID
from dcinterp.support.errors import UserError, nearest

DEFAULT_HEADS = 12
CALIBRATED = 32
"""Prompts on which the norms of a model with a background are set."""
SHARES = {"noise": "the weights", "background": "the shipped model's sizes"}
"""Knobs that are shares, and of what."""
MOST = {"heads": 64, "rank": 16}
"""Of each knob; the circuits need far less."""
LARGEST = 50_000_000
"""Parameters of a planted model (200 MB). A name is enough to build one, and a name may come with a link."""


@dataclass(frozen=True)
class Knobs:
    """What makes recovery harder.

    noise: standard deviation of Gaussian noise on every weight, as a share of the largest weight of its kind.
    redundancy: heads that play each role, in both layers; each does an equal part of the work.
    rank: ranks of the dynamic projection over which one sharing is spread.
    circuits: how many circuits live in the model: the one asked about, and others that rest on this question.
    heads: heads per layer; those without a role are decoys.
    background: real norms, and random weights everywhere, of this share of the shipped model's sizes (see
        dcinterp.planted.background).
    """

    noise: float = 0.0
    redundancy: int = 1
    rank: int = 1
    circuits: int = 1
    heads: int = DEFAULT_HEADS
    background: float = 0.0


@dataclass(frozen=True)
class PlantedModel:
    """A model and what was planted in it.

    circuit: the one that its examples are about.
    previous, question: the heads of layer 0 that every circuit reads from.
    roles: of the heads behind layer 0, by circuit and role.
    """

    circuit: str
    knobs: Knobs
    seed: int
    model: DCFormerForCausalLM
    previous: tuple[int, ...]
    question: tuple[int, ...]
    roles: Mapping[str, Mapping[str, tuple[int, ...]]]

    def examples(self, number: int, seed: int = 0) -> list[PlantedExample]:
        """Random examples of the circuit that the model is about."""
        # The draws are those of version 0.1, which had other names for two of the circuits.
        former = {now: old for old, now in FORMER.items()}
        draw = random.Random(f"{former.get(self.circuit, self.circuit)} {self.seed} {seed}")
        return [circuits()[self.circuit].ask(draw) for _ in range(number)]

    def truth(self, example: PlantedExample) -> Truth:
        """The true edges behind the answer to an example."""
        circuit = circuits()[example.circuit]
        traits, case = Traits.of(circuit), example.case or example.question
        first = [Edge(0, "o_b", h, h, +1, stage) for h in (*self.previous, *self.question) for stage in traits.STAGES]
        return Truth.of([*first, *circuit.edges(case, self.roles[example.circuit])], self.knobs.heads, traits.LAYERS)

    @torch.no_grad()
    def accuracy(self, examples: list[PlantedExample]) -> float:
        """Share of the examples whose most likely next token is the answer."""
        # All prompts of a circuit have the same length.
        ids = torch.tensor([[TOKEN_ID[word] for word in example.prompt.split()] for example in examples])
        targets = torch.tensor([TOKEN_ID[example.target] for example in examples])
        return float((self.model(ids).logits[:, -1].argmax(-1) == targets).float().mean())


def plant(circuit: str, *, seed: int = 0, **knobs: Any) -> PlantedModel:
    """Build a small DCFormer in which one circuit, of which every edge is known, makes the answers.

    Layer 0 has the previous-token heads (they tell a thing whose it is, and the last word which names are asked) and
    the question heads (they bring the question to the last word). Layer 1, and of some kinds layer 2, has the circuit.
    All other heads are decoys.

    Args:
        circuit: a name of `circuits()`.
        seed: which heads play which role, and the noise.
        knobs: fields of `Knobs`: noise, redundancy, rank, circuits, heads, background.

    Raises:
        UserError: there is no such circuit or knob, or the roles need more heads than there are.
    """
    circuit = FORMER.get(circuit, circuit)
    if circuit not in circuits():
        raise UserError(f"There is no planted circuit {circuit!r}; {nearest(circuit, circuits())}")
    chosen = _checked(knobs)
    traits, names = Traits.of(circuits()[circuit]), _residents(circuit, chosen.circuits)
    draw = random.Random(seed)
    free = [draw.sample(range(chosen.heads), chosen.heads) for _ in range(traits.LAYERS)]
    copies = chosen.redundancy
    _require_heads(names, traits.LAYERS, chosen)
    previous, question = _deal(free[0], copies, 2)
    fields: dict[str, Any] = {"compose_stages": traits.STAGES}
    if chosen.background:
        fields |= {"norm_eps": NORM_EPS, "intermediate_size": MLP_WIDTH * HEAD_WIDTH * chosen.heads}
    plan = Blueprint(chosen.heads, chosen.rank * len(names) + 1, traits.LAYERS, **fields)
    if (size := count_parameters(plan.config())) > LARGEST:
        raise UserError(
            f"{chosen.heads} heads, {chosen.circuits} circuits and rank {chosen.rank} make a model of {size:,} "
            f"parameters, and planted models have at most {LARGEST:,}; give a smaller rank or fewer heads."
        )
    plant_first_layer(plan, previous, question)
    roles = {}
    for number, name in enumerate(names):
        kind = circuits()[name]
        layer_of = Traits.of(kind).LAYER_OF
        roles[name] = {role: _deal(free[layer_of.get(role, 1)], copies, 1)[0] for role in kind.ROLES}
        kind.build(plan, roles[name], range(number * chosen.rank, (number + 1) * chosen.rank))
    plant_decoys(plan, free, rank=plan.rank - 1)
    model = plan.build()
    if chosen.noise:
        add_noise(model, chosen.noise, seed)
    planted = PlantedModel(circuit, chosen, seed, model, previous, question, roles)
    if chosen.background:
        prompts = [[TOKEN_ID[word] for word in e.prompt.split()] for e in planted.examples(CALIBRATED, seed=1)]
        add_background(model, chosen.background, seed, plan.stream.idle, torch.tensor(prompts))
    return planted


def read_plant(text: str) -> PlantedModel:
    """The planted model of a line such as "share-by-kp noise=0.02 seed=3" (spaces or commas between).

    Raises:
        UserError: as `plant`; a word is not of the form knob=number; or a knob is set twice.
    """
    name, *words = re.split(r"[\s,]+", text.strip())
    knobs: dict[str, Any] = {}
    for word in words:
        knob, _, value = word.partition("=")
        if knob in knobs:
            raise UserError(f"{text.strip()!r} sets {knob} twice; leave one out.")
        try:
            knobs[knob] = float(value) if knob in SHARES else int(value)
        except ValueError:
            raise UserError(
                f"{word!r} is not a valid setting of a planted model; write it like noise=0.02 or rank=2."
            ) from None
        if knob not in (known := [*(field.name for field in fields(Knobs)), "seed"]):
            raise UserError(f"There is no knob {knob!r}; {nearest(knob, known)}")
    if not abs(knobs.get("seed", 0)) < 2**63:
        raise UserError(f"The seed of a planted model has 64 bits, and {str(knobs['seed'])[:12]}... has more.")
    return plant(name, **knobs)


def _residents(circuit: str, number: int) -> list[str]:
    """The circuits that live in one model: the one asked about, and those beside it."""
    able = together()
    if number > 1 and circuit not in able:
        raise UserError(
            f"{circuit} answers a question that another circuit answers too, so it needs a model of its own; leave "
            "out circuits."
        )
    if number > len(able):
        raise UserError(
            f"circuits is {number}, but there are only {len(able)} kinds that can share a model; give at most as many."
        )
    return [circuit, *(name for name in able if name != circuit)][:number]


def _require_heads(names: list[str], layers: int, chosen: Knobs) -> None:
    """Refuse roles that need more heads than a layer has."""
    needed = [2, *(0 for _ in range(layers - 1))]
    for name in names:
        kind = circuits()[name]
        for role in kind.ROLES:
            needed[Traits.of(kind).LAYER_OF.get(role, 1)] += 1
    if max(needed) * chosen.redundancy > chosen.heads:
        raise UserError(
            f"{', '.join(names)} with {chosen.redundancy} heads a role need {max(needed) * chosen.redundancy} heads, "
            f"but there are {chosen.heads}; give more heads or plant fewer circuits."
        )


def _deal(free: list[int], copies: int, roles: int) -> list[tuple[int, ...]]:
    """Take the heads of some roles from those that are free."""
    return [tuple(free.pop() for _ in range(min(copies, len(free)))) for _ in range(roles)]


def _checked(knobs: Mapping[str, Any]) -> Knobs:
    known = asdict(Knobs())
    for name, value in knobs.items():
        if name not in known:
            raise UserError(f"There is no knob {name!r}; {nearest(name, known)}")
        if name in SHARES:
            if not 0 <= value < 1:
                raise UserError(f"{name} is {value!r}; it is a share of {SHARES[name]}, from 0 to below 1.")
        elif not isinstance(value, int) or value < 1:
            raise UserError(f"{name} is {value!r}; it must be a whole number of at least 1.")
        elif value > MOST.get(name, value):
            raise UserError(f"{name} is {value}; a planted model has at most {MOST[name]}.")
    chosen = Knobs(**knobs)
    if chosen.heads < 8:
        raise UserError(f"{chosen.heads} heads leave no room in the stream for the words; give at least 8.")
    return chosen


def plant_first_layer(plan: Blueprint, previous: tuple[int, ...], question: tuple[int, ...]) -> None:
    """The previous-token heads and the question heads, which every circuit reads from."""
    s = plan.stream
    for head in previous:
        look_back(plan, 0, head)
        for name in NAMES:
            plan.copy(0, head, s.at("token", name), s.at("previous", name), 1 / len(previous))
    for head in question:
        plan.rest_on_bos(0, head)
        plan.look(0, head, s.always(), s.any_of("token", QUESTIONS))
        for word in QUESTIONS:
            plan.copy(0, head, s.at("token", word), s.at("question", word), 1 / len(question))
