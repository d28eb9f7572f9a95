"""Two heads that attend to the thing and would both answer: the query gate silences the one not asked for.

    <bos> Ann cherry Bob frog Carl topaz type Bob  ->  animal        (item: frog)

`classifier` promotes the kind, `copier` the thing itself; without the gate both answers are equally likely. The
question drives w_qg to -1 on the other head, so its attention and its gate cancel: two edges of opposite sign
that scores of whole heads cannot show.
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
from dcinterp.planted.words import FACTS, KIND, OBJECTS

NAME = "gate-by-qg"
SUMMARY = "two heads attend to the thing, and the query gate silences the one that is not asked for"
QUESTIONS = ("type", "item")
ROLES = ("classifier", "copier")
HEAD_OF = dict(zip(QUESTIONS, ROLES, strict=True))


def build(plan: Blueprint, heads: Heads, ranks: Sequence[int]) -> None:
    for role, meaning in (("classifier", KIND), ("copier", {thing: thing for thing in OBJECTS})):
        for head in heads[role]:
            look_for_asked(plan, head, QUESTIONS)
            copy_by(plan, head, meaning, 1 / len(heads[role]))
    for question, silenced in zip(QUESTIONS, reversed(ROLES), strict=True):
        plan.silence("query", plan.stream.at("question", question), heads[silenced])


def ask(draw: random.Random) -> PlantedExample:
    names, things = facts(draw)
    asked, question = draw.randrange(FACTS), draw.choice(QUESTIONS)
    thing = things[asked]
    target, foil = (KIND[thing], thing) if question == "type" else (thing, KIND[thing])
    return PlantedExample(NAME, question, prompt(names, things, question, [asked]), target, foil, (place_of(asked),))


def edges(question: str, heads: Heads) -> list[Edge]:
    active = HEAD_OF[question]
    silent = next(role for role in ROLES if role != active)
    return [
        *own_edges("o_b", heads[active], +1),
        *own_edges("o_b", heads[silent], -1),
        *own_edges("o_qg", heads[silent], +1),
    ]
