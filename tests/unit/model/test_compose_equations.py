"""Compose against the equations of the paper, written out with loops, in float64."""

from itertools import product

import pytest
import torch
from torch import Tensor

from dcinterp.model.compose.branch_table import HOOKS
from dcinterp.model.compose.branches import ComposeWeights, branches, compose, head_maps, low_rank_map
from dcinterp.model.compose.dynamic import DynamicCompose, SideWeights
from dcinterp.model.compose.static import StaticCompose
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.kernels.portable import mix_heads

# Five axes, five sizes: two swapped axes cannot go unnoticed.
BATCH, HEADS, QUERIES, KEYS, RANK = 2, 6, 5, 7, 3
FLAGS = [flags for flags in product((True, False), repeat=5)]


def random_weights(groups: int = 1, seed: int = 0) -> tuple[Tensor, ComposeWeights]:
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    a = draw(BATCH, HEADS, QUERIES, KEYS)
    weights = ComposeWeights(
        w_q1=draw(BATCH, QUERIES, RANK, HEADS),
        w_q2=draw(BATCH, QUERIES, RANK, HEADS),
        w_qg=draw(BATCH, QUERIES, HEADS),
        w_k1=draw(BATCH, KEYS, RANK, HEADS),
        w_k2=draw(BATCH, KEYS, RANK, HEADS),
        w_kg=draw(BATCH, KEYS, HEADS),
        static=draw(HEADS, HEADS),
        skip=True,
        groups=groups,
    )
    return a, weights


def written_out(a: Tensor, w: ComposeWeights) -> dict[str, Tensor]:
    """Every branch as the sums of the paper, index by index."""
    out = {name: torch.zeros_like(a) for name in HOOKS}
    size = HEADS // w.groups
    for b, to, t, s in product(range(BATCH), range(HEADS), range(QUERIES), range(KEYS)):
        group = range(to // size * size, to // size * size + size)
        out["o_b"][b, to, t, s] = a[b, to, t, s] + sum(a[b, h, t, s] * w.static[h, to] for h in range(HEADS))
        for r in range(RANK):
            out["o_qp"][b, to, t, s] += w.w_q2[b, t, r, to] * sum(w.w_q1[b, t, r, h] * a[b, h, t, s] for h in group)
            out["o_kp"][b, to, t, s] += w.w_k2[b, s, r, to] * sum(w.w_k1[b, s, r, h] * a[b, h, t, s] for h in group)
        out["o_qg"][b, to, t, s] = a[b, to, t, s] * w.w_qg[b, t, to]
        out["o_kg"][b, to, t, s] = a[b, to, t, s] * w.w_kg[b, s, to]
    return out


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_every_branch_is_the_sum_of_the_paper(groups: int) -> None:
    a, weights = random_weights(groups)
    expected = written_out(a, weights)
    got = branches(a, weights)
    assert list(got) == list(HOOKS)
    for name, value in got.items():
        torch.testing.assert_close(value, expected[name], atol=1e-10, rtol=0)
    torch.testing.assert_close(compose(a, weights), sum(expected.values()), atol=1e-10, rtol=0)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("query_side", "key_side", "gates", "static", "skip"), FLAGS)
def test_the_fast_path_equals_the_branches(
    groups: int, query_side: bool, key_side: bool, gates: bool, static: bool, skip: bool
) -> None:
    from dataclasses import replace

    a, weights = random_weights(groups)
    absent = [] if query_side else ["w_q1", "w_q2", "w_qg"]
    absent += [] if key_side else ["w_k1", "w_k2", "w_kg"]
    absent += [] if gates else ["w_qg", "w_kg"]
    absent += [] if static else ["static"]
    weights = replace(weights, skip=skip, **dict.fromkeys(absent))
    torch.testing.assert_close(mix_heads(a, weights), compose(a, weights), atol=1e-10, rtol=0)


def test_head_maps_are_the_maps_from_head_to_head() -> None:
    a, weights = random_weights(groups=2)
    by_query, by_key = head_maps(weights)
    mixed = torch.einsum("btof,bfts->bots", by_query, a) + torch.einsum("bsof,bfts->bots", by_key, a)
    torch.testing.assert_close(mixed, compose(a, weights), atol=1e-10, rtol=0)


@pytest.mark.parametrize("groups", [1, 3])
def test_the_low_rank_map_entry_by_entry(groups: int) -> None:
    w1, w2 = torch.randn(2, 5, 2, 6, dtype=torch.float64)  # [position, rank, head]
    got = low_rank_map(w1, w2, groups)
    for p, f, h in product(range(5), range(6), range(6)):
        inside = f * groups // 6 == h * groups // 6
        assert got[p, f, h].item() == pytest.approx(sum(w1[p, r, f] * w2[p, r, h] for r in range(2)).item() * inside)
    assert torch.equal(low_rank_map(w2, w1, groups), got.transpose(1, 2))


def test_one_pair_by_hand() -> None:
    """Two heads, one query, one key, rank 1: all numbers can be done in the head.

    A = (2, 3); gather (1, -1) makes 2 - 3 = -1; share (10, 100) makes (-10, -100); gates (0.5, 0) add (1, 0).
    """
    a = torch.tensor([2.0, 3.0]).view(1, 2, 1, 1)
    w = ComposeWeights(
        w_q1=torch.tensor([1.0, -1.0]).view(1, 1, 1, 2),
        w_q2=torch.tensor([10.0, 100.0]).view(1, 1, 1, 2),
        w_kg=torch.tensor([0.5, 0.0]).view(1, 1, 2),
    )
    terms = {name: value.flatten().tolist() for name, value in branches(a, w).items()}
    assert terms == {"o_b": [2.0, 3.0], "o_qp": [-10.0, -100.0], "o_kg": [1.0, 0.0]}
    assert compose(a, w).flatten().tolist() == [-7.0, -97.0]


@pytest.mark.parametrize("groups", [1, 2])
def test_dynamic_weights_are_those_of_the_paper(groups: int) -> None:
    config = DCFormerConfig(
        hidden_size=36, num_attention_heads=HEADS, compose_rank=RANK, compose_groups=groups, vocab_size=5
    )
    side = SideWeights(config).double()
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in side.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=torch.float64) / 4)
    x = torch.randn(BATCH, QUERIES, 36, generator=g, dtype=torch.float64)
    w1, w2, wg = side(x)
    size = HEADS // groups
    inner = 2 * size * RANK
    for group in range(groups):
        heads = slice(group * size, group * size + size)
        down = side.down.weight[group * inner : (group + 1) * inner].T  # W_1 [D, 2 H R]
        u = x @ down
        hidden = 0.5 * u * (1 + torch.erf(u / 2**0.5))
        first, second = (hidden @ side.up[group]).view(BATCH, QUERIES, 2, RANK, size).unbind(2)
        first = first / (first.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
        torch.testing.assert_close(w1[..., heads], first, atol=1e-10, rtol=0)
        torch.testing.assert_close(w2[..., heads], second, atol=1e-10, rtol=0)
    torch.testing.assert_close(wg, torch.tanh(x @ side.gate.weight.T), atol=1e-10, rtol=0)


def test_branches_sum_to_the_composed_attention_in_float32() -> None:
    a, weights = random_weights()
    a, weights = a.float(), weights.with_dynamic(lambda name, w: w.float() / 3)
    from dataclasses import replace

    weights = replace(weights, static=weights.static.float())
    total = sum(branches(a, weights).values())
    assert (total - compose(a, weights)).abs().max() < 1e-6


def test_static_composition_alone_is_talking_heads() -> None:
    config = DCFormerConfig(hidden_size=36, num_attention_heads=HEADS, compose="static", compose_skip=False)
    module = StaticCompose(config)
    module.static.initialise()
    a = torch.randn(BATCH, HEADS, QUERIES, KEYS)
    x = torch.randn(BATCH, QUERIES, 36)
    mixed = torch.einsum("bfts,fo->bots", a, module.static.head_map())
    torch.testing.assert_close(module(a, module.weights(x, x)), mixed)


def test_zeroed_dynamic_parameters_leave_the_attention_alone() -> None:
    config = DCFormerConfig(hidden_size=36, num_attention_heads=HEADS)
    module = DynamicCompose(config)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    a, x = torch.randn(BATCH, HEADS, QUERIES, QUERIES), torch.randn(BATCH, QUERIES, 36)
    assert torch.equal(module(a, module.weights(x, x)), a)
