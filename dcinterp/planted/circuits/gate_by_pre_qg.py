"""Before the softmax: two heads would both answer, and the query gate makes the scores of one of them all equal.

    <bos> Ann cherry Bob frog Carl topaz type Bob  ->  animal        (item: frog)

As `gate-by-qg`, but what is gated are scores: the head that is not asked for spreads its attention over all tokens, and
so still says a little of every thing. Its scores by themselves speak for the foil, and the gate takes them back.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from dcinterp.planted.blueprint import Blueprint
from dcinterp.planted.circuit import Edge, Heads, PlantedExample, copy_by, look_for_asked, own_edges
from dcinterp.planted.circuits import gate_by_qg
from dcinterp.planted.circuits.gate_by_qg import HEAD_OF
from dcinterp.planted.words import KIND, OBJECTS

NAME = "gate-by-pre-qg"
SUMMARY = "two heads look for the thing, and before the softmax the query gate levels the scores of one of them"
QUESTIONS = ("type", "item")
ROLES = ("classifier", "copier")
STAGES = ("pre", "post")
ALONE = True


def build(plan: Blueprint, heads: Heads, ranks: Sequence[int]) -> None:
    for role, meaning in (("classifier", KIND), ("copier", {thing: thing for thing in OBJECTS})):
        for head in heads[role]:
            look_for_asked(plan, head, QUESTIONS)
            copy_by(plan, head, meaning, 1 / len(heads[role]))
    for question, silenced in zip(QUESTIONS, reversed(ROLES), strict=True):
        plan.silence("query", plan.stream.at("question", question), heads[silenced], stage="pre")


def ask(draw: random.Random) -> PlantedExample:
    return replace(gate_by_qg.ask(draw), circuit=NAME)


def edges(question: str, heads: Heads) -> list[Edge]:
    active = heads[HEAD_OF[question]]
    silent = heads[next(role for role in ROLES if role != HEAD_OF[question])]
    return [
        *own_edges("o_b", active, +1, stage="pre"),
        *own_edges("o_b", active, +1),
        *own_edges("o_b", silent, -1, stage="pre"),
        *own_edges("o_qg", silent, +1, stage="pre"),
        *own_edges("o_b", silent, -1),
    ]
