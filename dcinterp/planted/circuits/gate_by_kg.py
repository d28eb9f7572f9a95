"""The key gate: which of two heads may answer depends on the thing itself.

    <bos> Ann cherry Bob frog Carl topaz type Bob  ->  animal        (of a fruit: its colour)

`classifier` writes the kind and `painter` the colour of the thing that both attend to. At a fruit the key gate takes
back what `classifier` attends, at any other thing what `painter` does.
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
    look_for_asked,
    own_edges,
    place_of,
    prompt,
)
from dcinterp.planted.words import COLOUR, FACTS, KIND, OBJECTS

NAME = "gate-by-kg"
SUMMARY = "two heads attend to the thing, and the key gate silences the one that this kind of thing does not need"
QUESTIONS = ("type",)
ROLES = ("classifier", "painter")
ALONE = True
FRUIT = tuple(thing for thing in OBJECTS if KIND[thing] == "fruit")
ACTIVE = {"of a fruit": "painter", "of another thing": "classifier"}
"""By case."""


def build(plan: Blueprint, heads: Heads, ranks: Sequence[int], stage: str = "post") -> None:
    for role, meaning in (("classifier", KIND), ("painter", COLOUR)):
        for head in heads[role]:
            look_for_asked(plan, head, QUESTIONS)
            copy_by(plan, head, meaning, 1 / len(heads[role]))
    others = [thing for thing in OBJECTS if thing not in FRUIT]
    for things, silenced in ((FRUIT, "classifier"), (others, "painter")):
        plan.silence("key", plan.stream.any_of("token", things), heads[silenced], stage=stage)


def ask(draw: random.Random) -> PlantedExample:
    while True:
        names, things = facts(draw)
        # Of three colours: what an idle head says of the other things then speaks for neither answer.
        if len({COLOUR[thing] for thing in things}) == FACTS:
            break
    asked = draw.randrange(FACTS)
    thing = things[asked]
    answers = (COLOUR[thing], KIND[thing]) if thing in FRUIT else (KIND[thing], COLOUR[thing])
    case = "of a fruit" if thing in FRUIT else "of another thing"
    return PlantedExample(NAME, "type", prompt(names, things, "type", [asked]), *answers, (place_of(asked),), case)


def edges(question: str, heads: Heads) -> list[Edge]:
    active = heads[ACTIVE[question]]
    silent = heads[next(role for role in ROLES if role != ACTIVE[question])]
    return [*own_edges("o_b", active, +1), *own_edges("o_b", silent, -1), *own_edges("o_kg", silent, +1)]
