"""An edge planted in a model of every way of composing heads is the strongest one that attribution finds.

The circuit is that of `share-by-kp`: the finder attends to the thing that is asked about and its own values are dead,
the reader attends to <bos> and knows the kind of what it reads. Only what is composed can bring the two together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import dcinterp
from dcinterp.bridge import wrap
from dcinterp.model.compose.registry import COMPOSERS
from dcinterp.planted import tokenizer
from dcinterp.planted.blueprint import NORM_EPS, Blueprint
from dcinterp.planted.circuit import copy_by, find_for_others
from dcinterp.planted.circuits import share_by_kp
from dcinterp.planted.models import plant_first_layer
from dcinterp.planted.words import KIND, OBJECTS

HEADS, PREVIOUS, QUESTION = 8, 2, 3
FINDER, READER = 5, 1
"""Heads h and h + H/2, because differential attention composes these alone."""


@dataclass(frozen=True)
class Planting:
    """How the edge is planted: config fields, who fills the parameters (layer, attention, plan), and its branch."""

    fill: Callable[[int, Any, Blueprint], None]
    branch: str
    fields: dict[str, Any] = field(default_factory=dict)


def static(layer: int, attention: Any, plan: Blueprint) -> None:
    attention.post.static.weight[0, FINDER, READER] = float(layer == 1)


def dynamic_talking_heads(layer: int, attention: Any, plan: Blueprint) -> None:
    if layer == 1:
        things = plan.stream.any_of("token", OBJECTS)
        attention.post.key.maps.weight[FINDER * HEADS + READER] = things


def differential(layer: int, attention: Any, plan: Blueprint) -> None:
    """Lambda is 0 in layer 0, and -1 in layer 1: there the reader reads with the sum of both."""
    first = attention.post.lambda_init.item()
    for name, share in (("1", 1e-6), ("2", 1e-6 + first + layer)):
        getattr(attention.post, f"lambda_q{name}")[0] = math.log(share)
        getattr(attention.post, f"lambda_k{name}")[0] = 1
    # The norm over pairs is as good as a division: its epsilon is as large as that of all norms of a planted model.
    attention.o_proj.weight *= NORM_EPS**0.5 / (1 - first)


PLANTINGS = {
    "differential": Planting(differential, "skip"),
    "dynamic-talking-heads": Planting(dynamic_talking_heads, "kp"),
    "static": Planting(static, "skip", dict(compose_options={"bias": True})),
}


def planted(name: str) -> Any:
    plan = Blueprint(HEADS, rank=1, compose=name, **PLANTINGS[name].fields)
    plant_first_layer(plan, (PREVIOUS,), (QUESTION,))
    find_for_others(plan, FINDER, share_by_kp.QUESTIONS)
    plan.rest_on_bos(1, READER)
    copy_by(plan, READER, KIND, 1.0)
    model = plan.build()
    with torch.no_grad():
        for layer, block in enumerate(model.model.layers):
            PLANTINGS[name].fill(layer, block.self_attn, plan)
    return wrap(model, tokenizer(), name)


def test_every_way_of_composing_has_a_planted_edge() -> None:
    assert {*PLANTINGS, "dynamic"} == set(COMPOSERS), "that of DCMHA is in test_planted_truth"


@pytest.mark.parametrize("name", PLANTINGS)
def test_the_planted_edge_is_found(name: str) -> None:
    bridge, example = planted(name), share_by_kp.ask(random.Random(0))
    answer = bridge(example.prompt)[0, -1].argmax()
    assert bridge.tokenizer.decode(answer) == example.target
    found = dcinterp.attribute_edges(bridge, example.prompt, example.target, example.foil, check=1)
    best = found.top(1)[0]
    assert (best.layer, best.head_from, best.head_to, best.branch) == (1, FINDER, READER, PLANTINGS[name].branch)
    assert found.mismatch.max() < 1e-4
    difference = found.metric
    assert found.predicted[0].item() == pytest.approx(difference, rel=0.02), "nothing else makes the answer"
    assert found.measured[0].item() == pytest.approx(difference, rel=0.02)
