"""A head that attends to the thing, and another that knows its kind: the key projection shares the attention.

    <bos> Ann cherry Bob frog Carl topaz kind Bob  ->  animal

`finder` attends from the asked name to that person's thing; its own output has no effect. `transformer` attends to
<bos>, and promotes the kind of whatever it attends to. At every thing, w_k1 gathers `finder` and w_k2 shares with
`transformer`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from dcinterp.planted.blueprint import Blueprint
from dcinterp.planted.circuit import (
    Edge,
    Heads,
    PlantedExample,
    copy_by,
    facts,
    find_for_others,
    grid_edges,
    place_of,
    prompt,
)
from dcinterp.planted.words import FACTS, KIND, KINDS, OBJECTS

NAME = "share-by-kp"
SUMMARY = "through the key projection a head shares its attention with the head that knows the kind"
QUESTIONS = ("kind",)
ROLES = ("finder", "transformer")


def build(plan: Blueprint, heads: Heads, ranks: Sequence[int]) -> None:
    copies = len(heads["finder"])
    for finder, transformer in zip(heads["finder"], heads["transformer"], strict=True):
        find_for_others(plan, finder, QUESTIONS)
        plan.rest_on_bos(1, transformer)
        copy_by(plan, transformer, KIND, 1.0)
    a_thing = plan.stream.any_of("token", OBJECTS)
    plan.share("key", a_thing, heads["finder"], heads["transformer"], 1 / copies**2, ranks)


def ask(draw: random.Random) -> PlantedExample:
    names, things = facts(draw)
    asked = draw.randrange(FACTS)
    target = KIND[things[asked]]
    foil = draw.choice([kind for kind in KINDS if kind != target])
    return PlantedExample(NAME, "kind", prompt(names, things, "kind", [asked]), target, foil, (place_of(asked),))


def edges(question: str, heads: Heads) -> list[Edge]:
    return grid_edges("o_kp", heads["finder"], heads["transformer"])
