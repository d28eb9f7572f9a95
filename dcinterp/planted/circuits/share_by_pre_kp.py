"""Before the softmax: at every thing, the key projection adds the finder's scores to those of the head that can answer.

    <bos> Ann cherry Bob frog Carl topaz kind Bob  ->  animal

As `share-by-kp`, but what is shared are scores: `transformer` scores <bos> 120 by itself, and things get the finder's
scores: 160 if it is the asked one and the question is for this circuit, and 80 if only one of these is so. It then uses
its own attention: an edge of its own behind the softmax.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from dcinterp.planted.blueprint import Blueprint
from dcinterp.planted.circuit import Edge, Heads, PlantedExample, copy_by, grid_edges, own_edges
from dcinterp.planted.circuits import share_by_kp
from dcinterp.planted.words import KIND, NAMES, OBJECTS

NAME = "share-by-pre-kp"
SUMMARY = "before the softmax, through the key projection, a head adds its scores to those of the head that can answer"
QUESTIONS = ("kind",)
ROLES = ("finder", "transformer")
STAGES = ("pre", "post")
ALONE = True


def build(plan: Blueprint, heads: Heads, ranks: Sequence[int]) -> None:
    s, copies = plan.stream, len(heads["finder"])
    a_thing = s.any_of("token", OBJECTS)
    for finder, transformer in zip(heads["finder"], heads["transformer"], strict=True):
        for name in NAMES:
            plan.look(1, finder, s.at("token", name), s.at("previous", name), 2.0)
        plan.look(1, finder, s.any_of("question", QUESTIONS), a_thing, 2.0)
        plan.rest_on_bos(1, finder)
        plan.copy(1, finder, a_thing, s.dead(finder))
        plan.rest_on_bos(1, transformer, 3.0)
        copy_by(plan, transformer, KIND, 1 / copies)
    plan.share("key", a_thing, heads["finder"], heads["transformer"], 1 / copies, ranks, stage="pre")


def ask(draw: random.Random) -> PlantedExample:
    return replace(share_by_kp.ask(draw), circuit=NAME)


def edges(question: str, heads: Heads) -> list[Edge]:
    return [
        *grid_edges("o_kp", heads["finder"], heads["transformer"], stage="pre"),
        *own_edges("o_b", heads["transformer"]),
    ]
