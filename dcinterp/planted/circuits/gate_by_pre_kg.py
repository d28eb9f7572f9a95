"""The key gate before the softmax: it takes the score of a thing back from the head that this kind does not need.

    <bos> Ann cherry Bob frog Carl topaz type Bob  ->  animal        (of a fruit: its colour)

As `gate-by-kg`, but what is gated are scores: the head that loses its score of the thing attends to <bos> instead. Its
score alone, without the gate, is then no part of the answer: with neither of the two it is as silent.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from dcinterp.planted.blueprint import Blueprint
from dcinterp.planted.circuit import Edge, Heads, PlantedExample, own_edges
from dcinterp.planted.circuits import gate_by_kg
from dcinterp.planted.circuits.gate_by_kg import ACTIVE

NAME = "gate-by-pre-kg"
SUMMARY = "two heads look for the thing, and before the softmax the key gate takes its score back from one of them"
QUESTIONS = ("type",)
ROLES = ("classifier", "painter")
STAGES = ("pre", "post")
ALONE = True


def build(plan: Blueprint, heads: Heads, ranks: Sequence[int]) -> None:
    gate_by_kg.build(plan, heads, ranks, stage="pre")


def ask(draw: random.Random) -> PlantedExample:
    return replace(gate_by_kg.ask(draw), circuit=NAME)


def edges(question: str, heads: Heads) -> list[Edge]:
    active = heads[ACTIVE[question]]
    silent = heads[next(role for role in ROLES if role != ACTIVE[question])]
    return [
        *own_edges("o_b", active, +1, stage="pre"),
        *own_edges("o_b", active, +1),
        *own_edges("o_kg", silent, +1, stage="pre"),
    ]
