"""Two steps, each by borrowing: what a borrower of layer 1 writes is what a head of layer 2 looks for and shares.

    <bos> Ann cherry Bob frog Carl crab colour Bob  ->  red        (the other animal is a crab, and a crab is red)

Layer 1: `first finder` attends to Bob's thing, and by the key projection `writer` borrows that and writes the kind to
the channels `middle`. Layer 2: `second finder` attends to the thing of this kind that is not Bob's, and by the query
projection `reader` borrows that and answers with the colour.
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
from dcinterp.planted.words import COLOUR, KIND, KINDS, NAMES, OBJECTS

NAME = "chain"
SUMMARY = "a head borrows and writes a kind, and a later head looks for the other thing of this kind and shares that"
QUESTIONS = ("colour",)
ROLES = ("first finder", "writer", "second finder", "reader")
LAYERS = 3
LAYER_OF = {"second finder": 2, "reader": 2}
ALONE = True


def build(plan: Blueprint, heads: Heads, ranks: Sequence[int]) -> None:
    s, amount = plan.stream, 1 / len(heads["writer"]) ** 2
    for finder in heads["first finder"]:
        find_for_others(plan, finder, QUESTIONS)
    for writer in heads["writer"]:
        write_kind(plan, writer)
    plan.share("key", s.any_of("token", OBJECTS), heads["first finder"], heads["writer"], amount, ranks)
    for finder in heads["second finder"]:
        look_for_another(plan, finder, not_his=1.0)
        plan.copy(2, finder, s.any_of("token", OBJECTS), s.dead(finder))
    for reader in heads["reader"]:
        plan.rest_on_bos(2, reader)
        copy_by(plan, reader, COLOUR, 1.0, layer=2)
    asked = s.any_of("question", QUESTIONS)
    plan.share("query", asked, heads["second finder"], heads["reader"], amount, ranks, layer=2)


def write_kind(plan: Blueprint, head: int) -> None:
    """Make a head of layer 1 write the kind of what it attends to, by borrowing, to the channels `middle`."""
    plan.rest_on_bos(1, head)
    for kind in KINDS:
        things = [thing for thing in OBJECTS if KIND[thing] == kind]
        plan.copy(1, head, plan.stream.any_of("token", things), plan.stream.middle(kind))


def look_for_another(plan: Blueprint, head: int, not_his: float) -> None:
    """Make a head of layer 2 look for the thing of the kind in `middle`; the asked person's own loses `not_his`."""
    s = plan.stream
    for kind in KINDS:
        things = [thing for thing in OBJECTS if KIND[thing] == kind]
        plan.look(2, head, s.middle(kind), s.any_of("token", things))
    for name in NAMES:
        plan.look(2, head, s.at("token", name), s.at("previous", name), -not_his)
    plan.rest_on_bos(2, head)


def ask(draw: random.Random, circuit: str = NAME) -> PlantedExample:
    """Bob's thing and exactly one other are of the same kind; the foil is the colour of Bob's own."""
    while True:
        names, things = facts(draw)
        asked = draw.randrange(len(things))
        alike = [i for i, thing in enumerate(things) if i != asked and KIND[thing] == KIND[things[asked]]]
        if len(alike) == 1:
            break
    target, foil = (COLOUR[things[fact]] for fact in (alike[0], asked))
    places = (place_of(asked), place_of(alike[0]))
    return PlantedExample(circuit, "colour", prompt(names, things, "colour", [asked]), target, foil, places)


def edges(question: str, heads: Heads) -> list[Edge]:
    return [
        *grid_edges("o_kp", heads["first finder"], heads["writer"]),
        *grid_edges("o_qp", heads["second finder"], heads["reader"], layer=2),
    ]
