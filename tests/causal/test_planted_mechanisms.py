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
from dcinterp.mechanism.branches import NAMES
from dcinterp.mechanism.intervention_hooks import applied
from dcinterp.model.compose.registry import COMPOSERS
from dcinterp.planted import tokenizer
from dcinterp.planted.blueprint import NORM_EPS, SATURATED, Blueprint
from dcinterp.planted.circuit import copy_by, find_for_others, look_for_asked
from dcinterp.planted.circuits import share_by_kp
from dcinterp.planted.models import plant_first_layer
from dcinterp.planted.words import COLOUR, KIND, OBJECTS

HEADS, PREVIOUS, QUESTION = 8, 2, 3
FINDER, READER, RIVAL = 5, 1, 3
"""Finder and reader are heads h and h + H/2, because differential attention composes these alone."""


@dataclass(frozen=True)
class Planting:
    """How the edge is planted: who fills the parameters (layer, attention, plan), its branch, and config fields.

    rivals: instead of finder and reader there are two heads that both find the thing, and of which one knows its kind
    and the other its colour: the edge is the gate that silences the second, from this head to itself.
    """

    fill: Callable[[int, Any, Blueprint], None]
    branch: str
    fields: dict[str, Any] = field(default_factory=dict)
    rivals: bool = False


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


def gated(layer: int, attention: Any, plan: Blueprint) -> None:
    """Gates are open in layer 0; in layer 1, that of the reader's rival is closed."""
    attention.post.gate.weight += SATURATED * plan.stream.always()
    if layer == 1:
        attention.post.gate.weight[RIVAL] *= -1


def mixture_of_heads(layer: int, attention: Any, plan: Blueprint) -> None:
    """The router keeps every head but the rival, alike; all odds are multiplied back in W_O."""
    kept = HEADS - layer
    attention.post.routed.weight[:] = SATURATED * plan.stream.always()
    if layer == 1:
        attention.post.routed.weight[RIVAL] *= -1
    attention.o_proj.weight *= kept


def fish(layer: int, attention: Any, plan: Blueprint) -> None:
    attention.post.mixing[:] = torch.eye(HEADS)[: FINDER + 1]
    attention.post.mixing[FINDER, READER] = float(layer == 1)


def multi_token(layer: int, attention: Any, plan: Blueprint) -> None:
    for stage in (attention.pre, attention.post):
        stage.initialise()
        stage.heads.initialise()
    attention.post.heads.weight[0, FINDER, READER] = float(layer == 1)


PLANTINGS = {
    "multi-token": Planting(multi_token, "skip", dict(compose_stages=("pre", "post"))),
    "fish": Planting(fish, "skip", dict(compose_options={"attending": FINDER + 1})),
    "mixture-of-heads": Planting(mixture_of_heads, "qg", dict(compose_options={"shared": 0, "kept": 1.0}), rivals=True),
    "gated": Planting(gated, "qg", rivals=True),
    "differential": Planting(differential, "skip"),
    "dynamic-talking-heads": Planting(dynamic_talking_heads, "kp"),
    "static": Planting(static, "skip", dict(compose_options={"bias": True})),
}


def planted(name: str) -> Any:
    plan = Blueprint(HEADS, rank=1, compose=name, **PLANTINGS[name].fields)
    plant_first_layer(plan, (PREVIOUS,), (QUESTION,))
    if PLANTINGS[name].rivals:
        for head, meaning in ((READER, KIND), (RIVAL, COLOUR)):
            look_for_asked(plan, head, share_by_kp.QUESTIONS)
            copy_by(plan, head, meaning, 1.0)
    else:
        find_for_others(plan, FINDER, share_by_kp.QUESTIONS)
        plan.rest_on_bos(1, READER)
        copy_by(plan, READER, KIND, 1.0)
    model = plan.build()
    with torch.no_grad():
        for layer, block in enumerate(model.model.layers):
            PLANTINGS[name].fill(layer, block.self_attn, plan)
    return wrap(model, tokenizer(), name)


def test_every_way_of_composing_has_a_planted_edge() -> None:
    elsewhere = {"dynamic", "dense-collaboration"}  # in test_planted_truth, and below: it leads from layer to layer
    missing = set(COMPOSERS) - {*PLANTINGS, *elsewhere}
    assert not missing, (
        f"give {sorted(missing)} a row of PLANTINGS here: weights with which one edge carries the answer"
    )
    assert {*PLANTINGS, *elsewhere} == set(COMPOSERS)


@pytest.mark.parametrize("name", [name for name in PLANTINGS if not PLANTINGS[name].rivals])
def test_the_planted_edge_is_found(name: str) -> None:
    bridge, example = planted(name), share_by_kp.ask(random.Random(0))
    answer = bridge(example.prompt)[0, -1].argmax()
    assert bridge.tokenizer.decode(answer) == example.target
    screened = dcinterp.attribute_edges(bridge, example.prompt, example.target, example.foil, check=1).top(1)[0]
    # Of a planted edge the gradient is nothing, since the norm hides its size: a path from zero sees it.
    found = dcinterp.attribute_edges(bridge, example.prompt, example.target, example.foil, check=1, method="ig")
    best = found.top(1)[0]
    assert (best.layer, best.head_from, best.head_to, best.branch) == (1, FINDER, READER, PLANTINGS[name].branch)
    assert screened.label == best.label
    assert found.mismatch.max() < 1e-4
    difference = found.metric
    assert found.predicted[0].item() == pytest.approx(difference, rel=0.02), "nothing else makes the answer"
    assert found.measured[0].item() == pytest.approx(difference, rel=0.02)


@pytest.mark.parametrize("name", [name for name in PLANTINGS if PLANTINGS[name].rivals])
def test_the_planted_gate_is_found(name: str) -> None:
    """The rival's own attention speaks for its colour, and its gate takes this back: two edges of opposite sign."""
    bridge, example = planted(name), share_by_kp.ask(random.Random(0))
    thing = example.prompt.split()[example.sources[0]]
    assert bridge.tokenizer.decode(bridge(example.prompt)[0, -1].argmax()) == example.target
    found = dcinterp.attribute_edges(bridge, example.prompt, example.target, COLOUR[thing], check=0)
    own, gate = (found.scores[1, NAMES.index(branch)] for branch in ("skip", "qg"))
    best = gate.argmax().item()
    assert divmod(best, HEADS) == (RIVAL, RIVAL)
    m = found.metric
    assert (own + gate)[RIVAL, RIVAL].item() == pytest.approx(0, abs=0.02 * m)
    assert (own + gate)[READER, READER].item() == pytest.approx(m, rel=0.02), "nothing else makes the answer"
    with torch.no_grad(), applied(bridge, f"edge 1.post.qg.{RIVAL}>{RIVAL} zero", example.prompt):
        logits = bridge(example.prompt)[0, -1]
    right, wrong = (bridge.to_single_token(word) for word in (example.target, COLOUR[thing]))
    effect = m - (logits[right] - logits[wrong]).item()
    assert effect == pytest.approx(gate[RIVAL, RIVAL].item(), rel=0.02)
    assert effect > 0.9 * m


def test_a_planted_offset_is_found() -> None:
    """A head that scores names alone attends to the thing after the name: by the tap that reads one key back."""
    plan = Blueprint(HEADS, rank=1, compose="multi-token", compose_stages=("pre",))
    plan.look_for_name(1, READER, query="token", key="token")
    copy_by(plan, READER, KIND, 1.0)
    model, example = plan.build(), share_by_kp.ask(random.Random(0))
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.pre.initialise()
            block.self_attn.pre.heads.initialise()
        taps = block.self_attn.pre.taps
        middle = taps.shape[2] // 2
        taps[READER, 0, middle], taps[READER, 0, middle + 1] = 0, 1
    bridge = wrap(model, tokenizer(), "multi-token")
    pattern = bridge.run_with_cache(example.prompt)[1]["blocks.1.attn.hook_pattern"][0, READER, -1]
    assert pattern.argmax() == example.sources[0]
    assert bridge.tokenizer.decode(bridge(example.prompt)[0, -1].argmax()) == example.target
    found = beyond_is_found(bridge, example.prompt, example.target, example.foil, "hook_o_kq")
    best = found.top_beyond(1)[0]
    assert best.label == f"L1H{READER} → L1H{READER} (query 0, key -1)"
    assert found.scores[1].abs().max() < 1e-6, "no pair takes anything from its own scores in this head"


def test_a_planted_edge_from_the_layer_before_is_found() -> None:
    """A head of layer 1 that scores nothing reads where a head of layer 0, which writes nothing, has looked."""
    plan = Blueprint(HEADS, rank=1, compose="dense-collaboration", compose_stages=("pre",))
    plan.look(0, FINDER, plan.stream.always(), plan.stream.at("token", "frog"))
    copy_by(plan, READER, KIND, 1.0)
    model, prompt = plan.build(), "ruby lime frog ruby"
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.pre.own.initialise()
        model.model.layers[1].self_attn.pre.earlier.weight[0, FINDER, READER] = 1
    bridge = wrap(model, tokenizer(), "dense-collaboration")
    found = beyond_is_found(bridge, prompt, KIND["frog"], KIND["ruby"], "hook_o_prev")
    assert found.top_beyond(1)[0].label == f"L0H{FINDER} → L1H{READER} (previous layer)"
    assert [one.label for one in found.top_beyond()] == [found.top_beyond(1)[0].label], "there is no other"
    own = f"edge 0.pre.skip.{FINDER}>{FINDER}"  # where these scores come from
    assert set(found.table()["edge"][:2]) == {own, found.top_beyond(1)[0].label}


@torch.no_grad()
def logits_without(bridge: Any, prompt: str, name: str) -> Any:
    return bridge.run_with_hooks(prompt, fwd_hooks=[(name, lambda tensor, hook: tensor * 0)])[0, -1]


def beyond_is_found(bridge: Any, prompt: str, target: str, foil: str, term: str) -> Any:
    """The result; the strongest edge beyond a pair's own scores makes the answer, which is gone without the term."""
    found = dcinterp.attribute_edges(bridge, prompt, target, foil, stage="pre", method="ig", check=0)
    assert found.answer == target
    assert found.mismatch.max() < 1e-4
    layer = [f"blocks.1.attn.pre.{name}" for name in (term, "hook_out")]
    right, wrong = (bridge.to_single_token(word) for word in (target, foil))
    cut = [logits_without(bridge, prompt, name) for name in layer]
    without, equal = (float(logits[right] - logits[wrong]) for logits in cut)
    assert without == pytest.approx(equal, abs=1e-3), "all that the layer scores is this term"
    removed = found.metric - without
    assert removed > 0.5 * found.metric > 1
    assert found.top_beyond(1)[0].score == pytest.approx(removed, rel=0.02)
    return found
