"""Before the softmax: the question decides which of three heads gets the finder's scores, by the query projection.

    <bos> Ann cherry Bob frog Carl topaz colour Bob  ->  green        (class: animal; copy: frog)

As `share-by-qp`, but what is shared are scores, doubled so that they are far above the score of <bos>. The head that
gets them then uses its own attention: an edge of its own behind the softmax.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from dcinterp.planted.blueprint import Blueprint
from dcinterp.planted.circuit import Edge, Heads, PlantedExample, copy_by, find_for_others, grid_edges, own_edges
from dcinterp.planted.circuits import share_by_qp
from dcinterp.planted.circuits.share_by_qp import HEAD_OF, MEANINGS

NAME = "share-by-pre-qp"
SUMMARY = "before the softmax, through the query projection, a head adds its scores to those of the head asked for"
QUESTIONS = tuple(MEANINGS)
ROLES = ("finder", "classifier", "painter", "copier")
STAGES = ("pre", "post")
ALONE = True
TIMES = 2.0
"""Finder's scores: 80 on the thing, 52 on <bos>. Twice that is apart by enough, with the borrower's 20 on <bos>."""


def build(plan: Blueprint, heads: Heads, ranks: Sequence[int]) -> None:
    copies = len(heads["finder"])
    for finder in heads["finder"]:
        find_for_others(plan, finder, QUESTIONS)
    for question, meaning in MEANINGS.items():
        users = heads[HEAD_OF[question]]
        for head in users:
            plan.rest_on_bos(1, head)
            copy_by(plan, head, meaning, 1 / copies)
        asked = plan.stream.at("question", question)
        plan.share("query", asked, heads["finder"], users, TIMES / copies, ranks, stage="pre")


def ask(draw: random.Random) -> PlantedExample:
    return replace(share_by_qp.ask(draw), circuit=NAME)


def edges(question: str, heads: Heads) -> list[Edge]:
    users = heads[HEAD_OF[question]]
    return [*grid_edges("o_qp", heads["finder"], users, stage="pre"), *own_edges("o_b", users)]
