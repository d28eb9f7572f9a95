"""Edges as pure functions: a case worked by hand, the dense tensor that the code never builds, and the models."""

from __future__ import annotations

import pytest
import torch

from dcinterp.mechanism.branches import NAMES
from dcinterp.mechanism.edges import (
    EdgeState,
    composed,
    credit,
    edge_scores,
    edge_state,
    head_map,
    layer_taps,
)


def state_of(heads=3, queries=4, keys=5, rank=2, width=6, groups=1, seed=0):
    """A random state with five different axis sizes (here the query side and the key side need not be one prompt)."""
    g = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    weights = {
        name: random(queries if name[2] == "q" else keys, rank, heads) for name in ("w_q1", "w_q2", "w_k1", "w_k2")
    }
    weights |= {"w_qg": random(queries, heads), "w_kg": random(keys, heads)}
    same_group = torch.block_diag(*torch.ones(groups, heads // groups, heads // groups)).double()
    base = torch.eye(heads, dtype=torch.float64) + random(heads, heads) * same_group
    return EdgeState("post", random(heads, queries, keys), weights, base, groups, random(keys, heads, width))


def dense(state):
    """[branch, head_from, head_to, query, key], entry by entry."""
    heads, queries, keys = state.attention.shape
    w, out = state.weights, torch.zeros(len(NAMES), heads, heads, queries, keys, dtype=torch.float64)
    for f in range(heads):
        for h in range(heads):
            allied = f * state.groups // heads == h * state.groups // heads
            for t in range(queries):
                for s in range(keys):
                    maps = {
                        "skip": state.base[f, h],
                        "qp": (w["w_q1"][t, :, f] * w["w_q2"][t, :, h]).sum() * allied,
                        "kp": (w["w_k1"][s, :, f] * w["w_k2"][s, :, h]).sum() * allied,
                        "qg": w["w_qg"][t, h] * (f == h),
                        "kg": w["w_kg"][s, h] * (f == h),
                    }
                    for b, branch in enumerate(NAMES):
                        out[b, f, h, t, s] = state.attention[f, t, s] * maps[branch]
    return out


@pytest.mark.parametrize(("heads", "groups"), [(3, 1), (4, 2)])
def test_scores_are_those_of_the_dense_tensor(heads, groups):
    state = state_of(heads=heads, groups=groups)
    g = torch.randn(state.attention.shape, dtype=torch.float64)
    expected = torch.einsum("bfhts,hts->bfhs", dense(state), g)
    assert torch.allclose(edge_scores(state, g), expected, atol=1e-12)
    assert torch.allclose(composed(state), dense(state).sum((0, 1)), atol=1e-12)


def test_credit_is_the_gradient_at_the_composed_entries():
    state = state_of()
    pattern = composed(state).requires_grad_()
    z = torch.einsum("hts,shd->thd", pattern, state.values)
    weights = torch.randn_like(z)
    (gradient,) = torch.autograd.grad((z * weights).sum(), pattern)
    assert torch.allclose(credit(state, weights), gradient, atol=1e-12)


def test_a_case_worked_by_hand():
    """Two heads, one query, two keys: head 0 looks at key 1 and lends it to head 1 by the key's choice."""
    zero = torch.zeros(2, 1, 2)
    w_k1, w_k2 = zero.clone(), zero.clone()
    w_k1[1, 0, 0] = 2.0  # key 1 gathers from head 0 ...
    w_k2[1, 0, 1] = 3.0  # ... and shares to head 1
    attention = torch.tensor([[[0.25, 0.75]], [[1.0, 0.0]]])
    state = EdgeState(
        "post", attention, {"w_k1": w_k1, "w_k2": w_k2, "w_qg": torch.tensor([[0.0, -1.0]])},
        torch.eye(2), 1, torch.ones(2, 2, 1),
    )  # fmt: skip
    g = torch.tensor([[[1.0, 10.0]], [[100.0, 1000.0]]])
    scores = edge_scores(state, g)
    assert scores[NAMES.index("kp"), 0, 1].tolist() == [0.0, 0.75 * 6 * 1000]
    assert scores[NAMES.index("kp")].sum() == 4500
    assert scores[NAMES.index("skip"), 0, 0].tolist() == [0.25, 7.5]
    assert scores[NAMES.index("qg"), 1, 1].tolist() == [-100.0, 0.0]  # the query silences head 1
    assert scores[NAMES.index("qp")].abs().sum() == 0


VARIANTS = {
    "both sides": {},
    "static map": {"compose_static": True},
    "static map alone": {"compose": "static", "compose_skip": False},
    "no skip": {"compose_skip": False},
    "groups": {"compose_groups": 2},
    "rank 1, no gates": {"compose_rank": 1, "compose_gate": False},
    "gates only": {"compose_projection": False},
    "query side only": {"compose_key_wise": False},
    "key side only": {"compose_query_wise": False},
    "window": {"attention_windows": (4, None)},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("stage", ["pre", "post"])
def test_edges_add_up_to_the_models_composed_entries(make_bridge, prompt, changes, stage):
    bridge = make_bridge(**changes)
    names = layer_taps(bridge, 1, stage) + [f"blocks.1.attn.{stage}.hook_{tap}" for tap in ("out", "o_b")]
    names += [name for name in bridge.hook_dict if name.startswith(f"blocks.1.attn.{stage}.hook_o_")]
    with torch.no_grad():
        cache = bridge.run_with_cache(prompt, names_filter=[n for n in names if n in bridge.hook_dict])[1]
    state = edge_state(bridge, cache, 1, stage)
    prefix = f"blocks.1.attn.{stage}.hook_"
    assert torch.allclose(composed(state), cache[f"{prefix}out"][0], atol=1e-5)
    for branch, tap in (("skip", "o_b"), ("qp", "o_qp"), ("kp", "o_kp"), ("qg", "o_qg"), ("kg", "o_kg")):
        maps = head_map(state, branch)
        axis = "" if branch == "skip" else {"q": "t", "k": "s"}[branch[0]]
        term = torch.einsum(f"fts,{axis}fh->hts", state.attention, maps)
        expected = cache[f"{prefix}{tap}"][0] if f"{prefix}{tap}" in cache else torch.zeros_like(term)
        assert torch.allclose(term, expected, atol=1e-5), branch
