"""Breakdown, map and rows at one pair against the taps and against each other."""

from __future__ import annotations

import pytest
import torch

from dcinterp import UserError, attention_rows, compose_breakdown, composition_map

ABLATIONS = [
    {},
    {"compose_static": True, "compose_skip": False},
    {"compose_rank": 3, "compose_groups": 2},
    {"compose_gate": False},
    {"compose_projection": False},
    {"compose_key_wise": False},
    {"compose_query_wise": False, "compose_static": True},
]


@pytest.mark.parametrize("changes", ABLATIONS, ids=str)
@pytest.mark.parametrize("stage", ["pre", "post"])
def test_branches_add_up_and_the_map_does_the_same(make_bridge, prompt, changes, stage):
    bridge = make_bridge(**changes)
    terms = compose_breakdown(bridge, prompt, 1, query=-1, key=5, stage=stage)
    assert torch.allclose(sum(terms.branches.values()), terms.out, atol=1e-6)
    mapped = composition_map(bridge, prompt, 1, stage, query=-1, key=5)
    assert torch.allclose(sum(mapped.parts.values()), mapped.total, atol=1e-6)
    assert torch.allclose(terms.a @ mapped.total, terms.out, atol=1e-5)


def test_breakdown_is_what_the_model_computes(bridge, prompt):
    ids = bridge.to_tokens(prompt)
    _, cache = bridge.run_with_cache(ids)
    terms = compose_breakdown(bridge, ids, 0, query=10, key=3, stage="post")
    assert torch.equal(terms.out, cache["blocks.0.attn.hook_pattern"][0, :, 10, 3])
    assert torch.equal(terms.w_k2, cache["blocks.0.attn.post.hook_w_k2"][0, 3])
    assert torch.equal(terms.w_q1, cache["blocks.0.attn.post.hook_w_q1"][0, 10])


def test_what_is_lent_adds_up_to_the_low_rank_branches(bridge, prompt):
    terms = compose_breakdown(bridge, prompt, 1, query=-1, key=8)
    assert torch.allclose(terms.shared("key").sum(0), terms.o_kp, atol=1e-6)
    assert torch.allclose(terms.shared("query").sum(0), terms.o_qp, atol=1e-6)


def test_nothing_is_lent_between_groups(make_bridge, prompt):
    terms = compose_breakdown(make_bridge(compose_groups=2), prompt, 1, query=-1, key=8)
    for side, branch in (("key", "o_kp"), ("query", "o_qp")):
        assert torch.allclose(terms.shared(side).sum(0), terms.branches[branch], atol=1e-6)
        assert not terms.shared(side)[:4, 4:].any()


def test_lent_by_hand():
    """Two heads of which only head 0 attends: it keeps 1 and lends 2 * 3 to head 1."""
    from dcinterp.analysis.composition.compose_breakdown import ComposeBreakdown

    zero = torch.zeros(2)
    terms = ComposeBreakdown(
        tokens=("a",), layer=0, stage="post", query=0, key=0, a=torch.tensor([1.0, 0.0]), o_b=zero, o_qp=zero,
        o_kp=torch.tensor([0.0, 6.0]), o_qg=zero, o_kg=zero, out=zero, w_q1=torch.zeros(1, 2), w_q2=torch.zeros(1, 2),
        w_k1=torch.tensor([[2.0, 5.0]]), w_k2=torch.tensor([[0.0, 3.0]]), w_qg=zero, w_kg=zero,
    )  # fmt: skip
    assert terms.shared("key").tolist() == [[0.0, 6.0], [0.0, 0.0]]


def test_rows_before_and_after(bridge, prompt):
    rows = attention_rows(bridge, prompt, 1, query=9)
    assert rows.weights.shape == (8, 10)
    assert torch.allclose(rows.weights.sum(1), torch.ones(8), atol=1e-6)
    terms = compose_breakdown(bridge, prompt, 1, query=9, key=4)
    assert torch.equal(rows.weights[:, 4], terms.a)
    assert torch.equal(rows.composed[:, 4], terms.out)


def test_rows_of_a_plain_transformer_are_the_same_before_and_after(twin, prompt):
    rows = attention_rows(twin, prompt, 0)
    assert torch.equal(rows.weights, rows.composed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 7, "query": -1, "key": 0}, "layers 0..1"),
        ({"layer": 0, "query": 3, "key": 5}, "earlier ones"),
        ({"layer": 0, "query": 99, "key": 5}, "Query 99 is outside"),
        ({"layer": 0, "query": 3, "key": 1, "stage": "middle"}, "'pre'"),
    ],
)
def test_refuses_with_a_sentence(bridge, prompt, arguments, message):
    with pytest.raises(UserError, match=message):
        compose_breakdown(bridge, prompt, **arguments)


def test_a_plain_transformer_has_nothing_to_take_apart(twin, prompt):
    with pytest.raises(UserError, match="Load a DCFormer"):
        compose_breakdown(twin, prompt, 0, -1, 0)
