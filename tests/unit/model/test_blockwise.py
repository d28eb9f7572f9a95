"""The portable path by hand: blocks of every form, gradients of gradients, half precisions, and memory."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels import blockwise, composed_attention, portable
from dcinterp.model.mask import Sight
from tests.unit.model.test_kernels import Case, Largest, check, gradients


def by_hand(case: Case, numbers: int) -> Tensor:
    sight = Sight(case.causal, case.window, case.mask)
    stages = case.pre, case.post
    held = case.q, case.k, case.v, *portable._held(case.pre), *portable._held(case.post)
    return portable._ByHand.apply(tuple(map(portable._bare, stages)), sight, numbers, *held)


@pytest.mark.parametrize("numbers", [0, 3000, 1 << 20], ids=["few queries", "some entries", "whole"])
@pytest.mark.parametrize("seed", range(500, 510))
def test_blocks_are_the_equation(seed: int, numbers: int) -> None:
    case = Case(seed)
    check(case, by_hand(case, numbers), 1e-10, 1e-9)


@pytest.mark.parametrize("sight", [Sight(), Sight(window=5), Sight(causal=False)])
def test_every_query_of_every_entry_is_in_one_block_with_all_keys_that_it_sees(sight: Sight) -> None:
    batch, heads, queries, keys = 5, 2, 70, 77
    found = torch.zeros(batch, queries, keys, dtype=torch.long)
    for block in blockwise.blocks(batch, heads, queries, keys, sight, 2 * heads * 18 * keys):
        found[block.batch, block.rows, block.seen] += 1
    assert found.max() == 1
    mask = sight.dense(queries, keys, found.device)
    assert found.bool().all() if mask is None else found.bool()[:, mask[0, 0]].all()
    # And of what the rule hides, most is left out.
    assert mask is None or found.sum() < 0.85 * found.numel()


def test_gradients_of_gradients_are_those_of_the_equation() -> None:
    case = Case(4, queries=20, heads=2, pre="qkpg", post="qkpgs2")
    found = []
    for out in (by_hand(case, 0), case.expected()):
        first = torch.autograd.grad(out.pow(2).sum(), case.leaves(), create_graph=True)
        found.append(torch.autograd.grad(sum(g.pow(2).sum() for g in first), case.leaves()))
    for got, want in zip(*found, strict=True):
        assert (got - want).norm() <= 1e-9 * want.norm()


def test_many_gradients_at_once_are_those_one_by_one() -> None:
    case = Case(5, queries=20, heads=2, pre="qkpg", post="qkpgs2")
    out = by_hand(case, 0)
    upstream = torch.randn(3, *out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    together = torch.autograd.grad(out, case.leaves(), upstream, retain_graph=True, is_grads_batched=True)
    for number, one in enumerate(upstream):
        alone = torch.autograd.grad(out, case.leaves(), one, retain_graph=True)
        for got, want in zip(together, alone, strict=True):
            assert (got[number] - want).norm() <= 1e-9 * want.norm()


def test_a_query_that_sees_nothing_attends_evenly_and_gets_no_gradient() -> None:
    case = Case(5, queries=4, past=0, pre="qkpg", post=None, causal=False)
    case.mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    case.mask[..., 2, :] = False
    out = by_hand(case, 0)
    even = case.v.mean(2).repeat_interleave(case.heads // case.kv_heads, dim=1)
    torch.testing.assert_close(out[:, :, 2], even)
    (slope,) = torch.autograd.grad(out[:, :, 2].sum(), case.q)
    assert not slope.any()


def test_only_what_asks_for_a_gradient_gets_one() -> None:
    case = Case(6, queries=9, pre="qkpgs", post="qkpg")
    want = gradients(case.expected(), case)
    case.q, case.v = case.q.detach(), case.v.detach()  # which are views of leaves
    asking = [case.k, case.pre.w_k2, case.pre.static, case.post.w_qg]  # type: ignore[union-attr]
    for leaf in case.leaves():
        leaf.requires_grad_(any(leaf is x for x in asking))
    upstream = torch.randn(case.q.shape, generator=torch.Generator().manual_seed(1), dtype=case.dtype)
    by_hand(case, 0).backward(upstream)
    for leaf, expected in zip(case.leaves(), want, strict=True):
        if leaf.requires_grad:
            torch.testing.assert_close(leaf.grad, expected, atol=1e-9, rtol=1e-9)
        else:
            assert leaf.grad is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_are_summed_in_float32_on_a_processor(dtype: torch.dtype) -> None:
    case = Case(7, torch.float32, queries=40, pre="qkpg", post="qkpg")
    for leaf in case.leaves():
        leaf.data = leaf.data.to(dtype).float()
    halves = [s.with_dynamic(lambda _, w: w.to(dtype)) for s in (case.pre, case.post) if s is not None]
    narrow = by_hand(replace_inputs(case, dtype, halves), 0)
    assert narrow.dtype == dtype
    assert torch.equal(narrow, by_hand(case, 0).to(dtype))


def replace_inputs(case: Case, dtype: torch.dtype, stages: list[ComposeWeights]) -> Case:
    narrow = Case.__new__(Case)
    narrow.__dict__ |= case.__dict__
    narrow.q, narrow.k, narrow.v = (x.to(dtype) for x in (case.q, case.k, case.v))
    narrow.pre, narrow.post = stages
    return narrow


def test_under_autocast_types_come_together_and_a_backward_pass_inside_it_is_exact() -> None:
    case = Case(8, torch.float32, queries=30, past=0, pre="qkpg", post="qkpg")
    want = gradients(case.expected(), case)
    out = by_hand(case, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradients(out, case)
        mixed = portable.chunked_attention(
            case.q.bfloat16(), case.k, case.v, case.pre, case.post, sight=Sight(case.causal), chunk=7
        )
    for got, expected in zip(found, want, strict=True):
        assert (got - expected).norm() <= 1e-4 * expected.norm()
    assert mixed.dtype == torch.bfloat16


def test_without_weights_it_is_plain_attention() -> None:
    q, k, v = (torch.randn(3, 4, 90, 8, dtype=torch.float64) for _ in range(3))
    out = composed_attention(q, k, v, causal=True, implementation="chunked")
    torch.testing.assert_close(out, scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-12, rtol=1e-10)


def test_scores_of_more_than_a_block_are_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "BLOCK_NUMBERS", {"cpu": 1 << 12})
    heads, tokens = 4, 256
    q, k, v = (torch.randn(1, heads, tokens, 8, requires_grad=True) for _ in range(3))
    sides = {name: torch.randn(1, tokens, 2, heads) for name in ("w_q1", "w_q2", "w_k1", "w_k2")}
    weights = ComposeWeights(**sides, w_kg=torch.randn(1, tokens, heads, requires_grad=True))
    with Largest() as largest:
        composed_attention(q, k, v, weights, replace(weights), causal=True, implementation="chunked").sum().backward()
    assert largest.numbers <= blockwise.FEWEST * heads * tokens < heads * tokens**2 / 8
