# mypy: disable-error-code="no-untyped-def"
"""EXPERIMENTAL: composed attention as Triton kernels, never chosen by "auto".

Their tests passed on one H200; elsewhere they run on Triton's CPU interpreter, which checks the arithmetic
(docs/kernel.md has times). Here is the forward pass; `triton_backward` has the gradients, and only a gradient that is
itself differentiated is computed by the portable path. A program takes a
tile of queries of one batch entry, all heads, in two sweeps over blocks of keys (docs/kernel.md says why two), and sums
in float32. For the way back it keeps the logarithm of each row's denominator.

Imported by `select` when asked for, for importing it needs triton.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels.gradients import beyond_numbers, by_autograd
from dcinterp.model.kernels.portable import chunked_attention
from dcinterp.model.kernels.triton_backward import triton_gradients
from dcinterp.model.kernels.triton_compose import (
    INTERPRETED,
    OPTIONS,
    TILE,
    WEIGHTS,
    compose,
    constants,
    contiguous,
    held,
    hide,
    kernel,
    keys_of_tile,
    load_heads,
    mask_bytes,
    pairs_seen,
    products,
    row_places,
    store_heads,
    tl,
    triton,
)
from dcinterp.model.mask import Sight
from dcinterp.support.errors import UserError


def triton_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pre: ComposeWeights | None,
    post: ComposeWeights | None,
    *,
    causal: bool,
    window: int | None,
    mask: Tensor | None,
) -> Tensor:
    """What `reference_attention` computes, [batch, head, query, d_head] in the type of `q`; sums are float32.

    Raises:
        UserError: the tensors are float64, or lie where Triton cannot run.
    """
    if q.device.type != "cuda" and not (q.device.type == "cpu" and INTERPRETED):
        raise UserError(
            f"The Triton kernel needs a GPU, and q is on {q.device.type!r} (TRITON_INTERPRET=1, set before Python "
            'starts, interprets it on a CPU, slowly); choose implementation="chunked" or "auto".'
        )
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise UserError(f'The Triton kernel sums in float32 and refuses {q.dtype}; choose implementation="chunked".')
    sight = Sight(causal, window, mask)
    return _Triton.apply(pre, post, sight, q, k, v, *held(pre), *held(post))


def _stage(stage: ComposeWeights | None, weights: Iterator[Tensor | None]) -> ComposeWeights | None:
    """`stage` with the next seven `weights` for its own."""
    named: dict[str, Any] = {name: next(weights) for name in WEIGHTS}
    return None if stage is None else replace(stage, **named)


class _Triton(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pre: Any, post: Any, sight: Sight, q: Tensor, k: Tensor, v: Tensor, *weights: Any) -> Tensor:
        # Of the stages only the flags are kept, so that no weight escapes the bookkeeping of autograd.
        ctx.bare = [None if s is None else replace(s, **dict.fromkeys(WEIGHTS)) for s in (pre, post)]
        ctx.sight = sight
        rest = iter(weights)
        out, denominators = _attend(q, k, v, _stage(pre, rest), _stage(post, rest), sight)
        ctx.save_for_backward(denominators, q, k, v, *weights)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        denominators, *inputs = ctx.saved_tensors
        needed = ctx.needs_input_grad[3:]
        if beyond_numbers(grad):

            def attend(given: Sequence[Any]) -> Tensor:
                """The portable path, in float32."""
                q, k, v = (x.float() for x in given[:3])
                weights = iter([x if x is None else x.float() for x in given[3:]])
                return chunked_attention(q, k, v, *(_stage(bare, weights) for bare in ctx.bare), sight=ctx.sight)

            return None, None, None, *by_autograd(attend, inputs, needed, grad.float())
        q, k, v = inputs[:3]
        rest = iter(inputs[3:])
        stages = [_stage(bare, rest) for bare in ctx.bare]
        found = triton_gradients(grad, denominators, q, k, v, *stages, sight=ctx.sight)
        return None, None, None, *(x if need else None for x, need in zip(found, needed, strict=True))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, pre: ComposeWeights | None, post: ComposeWeights | None, sight: Sight
) -> tuple[Tensor, Tensor]:
    """The output, and the logarithms of the softmax's denominators [batch, head, query], float32."""
    batch, heads, queries, width = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    denominators = torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device)
    if out.numel() == 0:
        return out, denominators
    launched: Any = forward_kernel
    with torch.cuda.device_of(q):  # Triton launches on the current device
        launched[(triton.cdiv(queries, TILE), batch)](
            *contiguous([q, k, v]), out, denominators, *mask_bytes(sight.allowed),
            *contiguous([*held(pre), *held(post)]), queries, k.shape[2], width**-0.5,
            **constants(q, k, pre, post, sight), **OPTIONS,
        )  # fmt: skip
    return out, denominators


@kernel
def forward_kernel(
    q, k, v, out, denominators, mask, mask_b, mask_t, mask_s,
    pre_q1, pre_q2, pre_qg, pre_k1, pre_k2, pre_kg, pre_static,
    post_q1, post_q2, post_qg, post_k1, post_k2, post_kg, post_static,
    queries, keys, scale,
    pre_rank_q: tl.constexpr, pre_rank_k: tl.constexpr, pre_groups: tl.constexpr, pre_skip: tl.constexpr,
    post_rank_q: tl.constexpr, post_rank_k: tl.constexpr, post_groups: tl.constexpr, post_skip: tl.constexpr,
    heads: tl.constexpr, shared: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, wide: tl.constexpr,
    causal: tl.constexpr, window: tl.constexpr, cut: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    tile_start = tl.program_id(0) * tile
    b = tl.program_id(1).to(tl.int64)
    t = tile_start + tl.arange(0, tile)
    low, high = keys_of_tile(tile_start, queries, keys, cut, window, tile, block)
    top = tl.full([padded, tile], float("-inf"), tl.float32)
    total = tl.zeros([padded, tile], tl.float32)
    acc = tl.zeros([padded, tile, wide], tl.float32)
    for sweep in tl.static_range(2):
        for start in range(low, high, block):
            s = start + tl.arange(0, block)
            a = products(q, k, b, t, s, queries, keys, heads // shared, heads, padded, width, tile, block) * scale
            a = compose(a, pre_q1, pre_q2, pre_qg, pre_k1, pre_k2, pre_kg, pre_static, b, t, s,
                        queries, keys, pre_rank_q, pre_rank_k, pre_groups, pre_skip, heads, padded,
                        False)  # fmt: skip
            seen = pairs_seen(mask, mask_b, mask_t, mask_s, b, t, s, queries, keys, causal, window)
            a = hide(a, seen, s, keys)
            if sweep == 0:
                new = tl.maximum(top, tl.max(a, 2))
                total = total * tl.exp(top - new) + tl.sum(tl.exp(a - new[:, :, None]), 2)
                top = new
            else:
                a = tl.exp(a - top[:, :, None]) / total[:, :, None]
                a = compose(a, post_q1, post_q2, post_qg, post_k1, post_k2, post_kg, post_static, b, t, s,
                            queries, keys, post_rank_q, post_rank_k, post_groups, post_skip, heads, padded,
                            False)  # fmt: skip
                z = load_heads(v, b, s, keys, 0, heads // shared, heads, padded, width, wide)
                acc += tl.dot(a, z, input_precision="ieee")
    store_heads(out, acc, b, t, queries, heads, padded, width, wide)
    # Of a row that sees nothing `top` is the lowest finite number, and the sum is again: the way back knows it by that.
    row, row_ok = row_places(b, t, queries, heads, padded)
    tl.store(denominators + row, top + tl.log(total), mask=row_ok)
