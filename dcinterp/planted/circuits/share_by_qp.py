"""One head that attends to the thing, and three that can use it: the query projection shares with the one asked for.

    <bos> Ann cherry Bob frog Carl topaz colour Bob  ->  green        (class: animal; copy: frog)

The question word, which reached the last position in layer 0, drives w_q1 (gather `finder`) and w_q2 (share with
`classifier`, `painter` or `copier`).
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
from dcinterp.planted.words import COLOUR, FACTS, KIND, OBJECTS

NAME = "share-by-qp"
SUMMARY = "through the query projection a head shares its attention with the head that the question asks for"
MEANINGS = {"class": KIND, "colour": COLOUR, "copy": {thing: thing for thing in OBJECTS}}
QUESTIONS = tuple(MEANINGS)
ROLES = ("finder", "classifier", "painter", "copier")
HEAD_OF = dict(zip(QUESTIONS, ROLES[1:], strict=True))


def build(plan: Blueprint, heads: Heads, ranks: Sequence[int]) -> None:
    copies = len(heads["finder"])
    for finder in heads["finder"]:
        find_for_others(plan, finder, QUESTIONS)
    for question, meaning in MEANINGS.items():
        users = heads[HEAD_OF[question]]
        for head in users:
            plan.rest_on_bos(1, head)
            copy_by(plan, head, meaning, 1.0)
        plan.share("query", plan.stream.at("question", question), heads["finder"], users, 1 / copies**2, ranks)


def ask(draw: random.Random) -> PlantedExample:
    names, things = facts(draw)
    asked, question = draw.randrange(FACTS), draw.choice(QUESTIONS)
    meaning = MEANINGS[question]
    target = meaning[things[asked]]
    foil = draw.choice([value for value in dict.fromkeys(meaning.values()) if value != target])
    return PlantedExample(NAME, question, prompt(names, things, question, [asked]), target, foil, (place_of(asked),))


def edges(question: str, heads: Heads) -> list[Edge]:
    return grid_edges("o_qp", heads["finder"], heads[HEAD_OF[question]])
