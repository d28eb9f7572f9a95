"""Two heads that do the same: either of two routes is enough, so removing one of them changes nothing.

    <bos> Ann cherry Bob frog Carl crab colour Bob  ->  red        (the other animal is a crab, and a crab is red)

In layer 1 two writers borrow where Bob's thing is, one from `first finder` by the key projection and one from `second
finder` by the query projection, and both write its kind to the channels `middle`. `reader` of layer 2 looks for the
other thing of this kind; once is as good as twice. What removes one edge at a time finds neither of the two.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from dcinterp.planted.blueprint import Blueprint
from dcinterp.planted.circuit import Edge, Heads, PlantedExample, copy_by, find_for_others, grid_edges, own_edges
from dcinterp.planted.circuits import chain
from dcinterp.planted.circuits.chain import look_for_another, write_kind
from dcinterp.planted.words import COLOUR, OBJECTS

NAME = "backup"
SUMMARY = (
    "two heads borrow the same, by different branches, and either is enough for the head that reads what they wrote"
)
QUESTIONS = ("colour",)
ROLES = ("first finder", "first writer", "second finder", "second writer", "reader")
LAYERS = 3
LAYER_OF = {"reader": 2}
ALONE = True
BACKUPS = True


def build(plan: Blueprint, heads: Heads, ranks: Sequence[int]) -> None:
    s, amount = plan.stream, 1 / len(heads["reader"]) ** 2
    features = {"key": s.any_of("token", OBJECTS), "query": s.any_of("question", QUESTIONS)}
    for (side, feature), which in zip(features.items(), ("first", "second"), strict=True):
        finders, writers = heads[f"{which} finder"], heads[f"{which} writer"]
        for finder, writer in zip(finders, writers, strict=True):
            find_for_others(plan, finder, QUESTIONS)
            write_kind(plan, writer)
        plan.share(side, feature, finders, writers, amount, ranks)
    for reader in heads["reader"]:
        look_for_another(plan, reader, not_his=2.0)
        copy_by(plan, reader, COLOUR, 1 / len(heads["reader"]), layer=2)


def ask(draw: random.Random) -> PlantedExample:
    return chain.ask(draw, NAME)


def edges(question: str, heads: Heads) -> list[Edge]:
    return [
        *grid_edges("o_kp", heads["first finder"], heads["first writer"]),
        *grid_edges("o_qp", heads["second finder"], heads["second writer"]),
        *own_edges("o_b", heads["reader"], layer=2),
    ]
