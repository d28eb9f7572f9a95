"""The rules for edges: against brute force where they are exact, and on planted circuits where one of them is blind."""

from __future__ import annotations

import pytest
import torch
from torch import einsum

import dcinterp
from dcinterp.mechanism.branches import NAMES
from dcinterp.mechanism.edge_rules import RULES, EdgeQuestion, Resoftmaxed
from dcinterp.mechanism.edge_scores import MEASURING, METHODS, union_of_rankings
from dcinterp.mechanism.edges import EdgeState, head_map
from dcinterp.mechanism.linearised import Linearised
from dcinterp.model.norm import RMSNorm, rms_normalise


def test_the_methods_are_the_rules_and_what_is_measured():
    assert set(METHODS) == {*RULES, *MEASURING}


def state_of(seed: int) -> EdgeState:
    """Four heads in two groups, five positions, rank two; static weights too."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    low_rank = {name: normal(5, 2, 4) for name in ("w_q1", "w_q2", "w_k1", "w_k2")}
    gates = {name: normal(5, 4) for name in ("w_qg", "w_kg")}
    base = torch.eye(4, dtype=torch.float64) + torch.block_diag(normal(2, 2), normal(2, 2))
    return EdgeState("pre", normal(4, 5, 5), low_rank | gates, base, 2, None)


@pytest.mark.parametrize(("with_other", "gate_is_off"), [(False, False), (True, False), (True, True)])
def test_recomputed_is_exact_up_to_the_softmax(with_other, gate_is_off):
    """f = <softmax(S), g>: every edge removed by hand, one at a time."""
    state, other = state_of(0), state_of(1) if with_other else None
    if gate_is_off:  # which is on in the other prompt
        state.weights["w_qg"].zero_()
        state.weights["w_q1"][..., 2] = 0
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    scores = torch.randn(4, 5, 5, dtype=torch.float64).masked_fill(hidden, torch.finfo(torch.float64).min)
    g = torch.randn(4, 5, 5, dtype=torch.float64)
    slope = Resoftmaxed(scores, g)
    by_source = slope.edges(state, other)

    def part(of: EdgeState, branch: str, f: int, h: int) -> torch.Tensor:
        chosen = head_map(of, branch)[..., f, h]
        side = {"qp": chosen[..., None], "qg": chosen[..., None], "skip": chosen}
        return of.attention[f] * side.get(branch, chosen)

    for place, branch in enumerate(NAMES):
        for f in range(4):
            for h in range(4):
                moved = torch.zeros_like(scores)
                moved[h] = part(state, branch, f, h) - (part(other, branch, f, h) if other else 0)
                effect = einsum("hts,hts->", scores.softmax(-1) - (scores - moved).softmax(-1), g)
                assert float(by_source[place, f, h].sum()) == pytest.approx(float(effect), abs=1e-9)
                assert float(slope.effect(moved[None])) == pytest.approx(float(effect), abs=1e-9)


def test_linearised_slopes_share_out_the_whole_and_leave_the_values():
    draw = torch.Generator().manual_seed(0)
    x = (5 * torch.randn(1, 2, 3, 6, generator=draw, dtype=torch.float64)).requires_grad_()
    w = torch.randn(6, generator=draw, dtype=torch.float64)
    functions = {
        # The output itself is shared out among the entries: x . slope = f(x).
        "norm": (rms_normalise, 0.0),
        "RMSNorm": (RMSNorm(6, 1e-6).double(), 0.0),
        "layer_norm": (lambda t: torch.nn.functional.layer_norm(t, (6,)), 0.0),
        "gelu": (torch.nn.functional.gelu, 0.0),
        "silu": (torch.nn.functional.silu, 0.0),
        # A softmax is shared out from where it attends to all alike.
        "softmax": (lambda t: t.softmax(-1), 1 / 6),
    }
    for name, (function, start) in functions.items():
        with Linearised():
            y = function(x)
        assert torch.allclose(y, function(x)), name
        (slope,) = torch.autograd.grad((y * w).sum(), x)
        assert float((slope * x).detach().sum()) == pytest.approx(float(((y - start) * w).detach().sum()), abs=1e-4), (
            name
        )
    with Linearised(on=False):
        y = rms_normalise(x)
    assert float((torch.autograd.grad((y * w).sum(), x)[0] * x).detach().sum()) == pytest.approx(0, abs=1e-6)


def test_halfway_is_the_slope_at_half_the_layer(bridge, prompt):
    ids = bridge.to_tokens(prompt)

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return logits[:, -1, 7] - logits[:, -1, 9]

    slopes, _ = RULES["halfway"].slopes(EdgeQuestion(bridge, ids, metric, "post", (0, 1)))
    for layer, name in ((0, "blocks.0.attn.hook_z"), (1, "blocks.1.attn.hook_z")):
        z = bridge.run_with_cache(ids, names_filter=[name])[1][name]

        def at(share: float, name: str = name) -> float:
            with torch.no_grad():
                return float(metric(bridge.run_with_hooks(ids, fwd_hooks=[(name, lambda t, hook: share * t)])))

        slope = (at(0.51) - at(0.49)) / 0.02
        assert float(slopes[layer].effect(z)) == pytest.approx(slope, rel=0.02, abs=2e-3)


def test_rankings_are_united_without_crowding_each_other_out():
    first, second = torch.zeros(1, 5, 3, 3), torch.zeros(1, 5, 3, 3)
    first[0, 0, 1, 1], first[0, 1, 0, 2], first[0, 1, 2, 0], first[0, 1, 1, 0] = 9.0, -3.0, 2.0, 1e-6
    second[0, 2, 1, 2] = 0.1
    assert union_of_rankings([first, second], 2) == [(0, 1, 0, 2), (0, 1, 2, 0), (0, 0, 1, 1), (0, 2, 1, 2)]
    assert union_of_rankings([first], 0) == []


@pytest.mark.parametrize("circuit", ["share-by-qp", "gate-by-qg"])
def test_a_saturated_planted_edge_is_found_by_default(circuit):
    """The edges of layer 0 act through a saturated softmax, or a norm: their gradient is zero, their effect is not."""
    bridge = dcinterp.load(f"planted:{circuit},seed=1")
    planted = dcinterp.plant(circuit, seed=1)
    example = planted.examples(1)[0]
    ask = {"prompt": example.prompt, "target": example.target, "foil": example.foil, "per_source": False}
    blind = dcinterp.attribute_edges(bridge, **ask, method="gradient", check=0).scores
    every = dcinterp.attribute_edges(bridge, **ask, method="ablation")
    found = dcinterp.attribute_edges(bridge, **ask)
    strong = every.scores.abs() > 0.5
    assert (blind[strong].abs() < 1e-3).any(), "the gradient misses one"
    assert torch.allclose(found.scores[strong], every.scores[strong], atol=1e-4)
    assert (planted.truth(example).edges[strong] != 0).all()
    assert len(found.checked) < len(every.checked) / 10
