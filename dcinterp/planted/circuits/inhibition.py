"""Inhibition: one head speaks for a wrong answer, and another borrows its attention to speak against it.

    <bos> Ann cherry Bob frog Carl topaz both Ann Bob  ->  fruit        (not animal)

`promoter` attends to the thing of the first name and `rival` to that of the second, and each writes a kind: a tie. By
the query projection `inhibitor` borrows the attention of `rival`, and writes against the kind that it finds there. So
the attention of one head is used twice, with opposite signs.
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
    grid_edges,
    look_for_asked,
    own_edges,
    place_of,
    prompt,
)
from dcinterp.planted.words import FACTS, KIND

NAME = "inhibition"
SUMMARY = "a head borrows the attention of a rival through the query projection, and speaks against what the rival says"
QUESTIONS = ("both",)
ROLES = ("promoter", "rival", "inhibitor")
ALONE = True


def build(plan: Blueprint, heads: Heads, ranks: Sequence[int]) -> None:
    copies = len(heads["rival"])
    for role, name_from in (("promoter", "previous"), ("rival", "token")):
        for head in heads[role]:
            look_for_asked(plan, head, QUESTIONS, name_from)
            copy_by(plan, head, KIND, 1 / copies)
    for head in heads["inhibitor"]:
        plan.rest_on_bos(1, head)
        copy_by(plan, head, KIND, -1.0)
    asked = plan.stream.any_of("question", QUESTIONS)
    plan.share("query", asked, heads["rival"], heads["inhibitor"], 1 / copies**2, ranks)


def ask(draw: random.Random) -> PlantedExample:
    while True:
        names, things = facts(draw)
        asked = draw.sample(range(FACTS), 2)
        target, foil = (KIND[things[fact]] for fact in asked)
        if target != foil:
            break
    places = tuple(place_of(fact) for fact in asked)
    return PlantedExample(NAME, "both", prompt(names, things, "both", asked), target, foil, places)


def edges(question: str, heads: Heads) -> list[Edge]:
    return [
        *own_edges("o_b", heads["promoter"], +1),
        *own_edges("o_b", heads["rival"], -1),
        *grid_edges("o_qp", heads["rival"], heads["inhibitor"], +1),
    ]
