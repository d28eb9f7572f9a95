"""Two heads that each attend to one thing, and one that borrows from both and adds up what the things have in common.

    <bos> Ann cherry Bob frog Carl ruby both Ann Carl  ->  red

`first finder` looks for the name before the last word, `second finder` for the last word. At things, the key projection
shares the attention of both with `reader`, which promotes the kind and the colour of what it attends to: what both
things have in common is promoted twice. Without either of the two finders the answer is a tie.
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
from dcinterp.planted.words import COLOUR, COLOURS, FACTS, KIND, KINDS, OBJECTS

NAME = "many-to-one"
SUMMARY = (
    "through the key projection two heads share their attention with one, which adds up what the things have in common"
)
QUESTIONS = ("both",)
ROLES = ("first finder", "second finder", "reader")


def build(plan: Blueprint, heads: Heads, ranks: Sequence[int]) -> None:
    for role, name_from in (("first finder", "previous"), ("second finder", "token")):
        for finder in heads[role]:
            find_for_others(plan, finder, QUESTIONS, name_from)
    for reader in heads["reader"]:
        plan.rest_on_bos(1, reader)
        copy_by(plan, reader, KIND, 1.0)
        copy_by(plan, reader, COLOUR, 1.0)
    finders = [*heads["first finder"], *heads["second finder"]]
    amount = 1 / len(heads["reader"]) ** 2
    plan.share("key", plan.stream.any_of("token", OBJECTS), finders, heads["reader"], amount, ranks)


def ask(draw: random.Random) -> PlantedExample:
    while True:
        names, things = facts(draw)
        asked = draw.sample(range(FACTS), 2)
        kinds, colours = ([meaning[things[fact]] for fact in asked] for meaning in (KIND, COLOUR))
        if (kinds[0] == kinds[1]) != (colours[0] == colours[1]):
            break
    alike, values = (kinds, KINDS) if kinds[0] == kinds[1] else (colours, COLOURS)
    foil = draw.choice([value for value in values if value != alike[0]])
    text = prompt(names, things, "both", asked)
    return PlantedExample(NAME, "both", text, alike[0], foil, tuple(place_of(fact) for fact in asked))


def edges(question: str, heads: Heads) -> list[Edge]:
    return grid_edges("o_kp", [*heads["first finder"], *heads["second finder"]], heads["reader"])
