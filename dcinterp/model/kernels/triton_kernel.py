# mypy: disable-error-code="no-untyped-def"
"""EXPERIMENTAL: composed attention as a Triton kernel, never chosen by "auto".

It has been run on Triton's CPU interpreter only, which checks the arithmetic: whether it is right on a GPU, and how
fast, nobody has seen. Only the forward pass is a kernel; the backward pass computes everything again through
the portable path. A program takes a tile of queries of one batch entry, all heads, in two sweeps over blocks of keys
(docs/kernel.md says why two), and sums in float32.

Imported by `select` when asked for, for importing it needs triton.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dcinterp.model.compose.branches import DYNAMIC_WEIGHTS, ComposeWeights
from dcinterp.model.kernels.gradients import by_autograd
from dcinterp.model.kernels.portable import chunked_attention
from dcinterp.model.mask import Sight
from dcinterp.support.errors import UserError

try:
    import triton
    import triton.language as tl
except ImportError as missing:
    raise UserError(
        'implementation="triton" needs the package triton: pip install triton; or choose "chunked", without it.'
    ) from missing

TILE, BLOCK = 16, 32
"""Queries of a program and keys of a block; `tl.dot` wants 16 at least."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels run on Triton's interpreter: decided when they are defined, as Triton does."""

WEIGHTS = (*DYNAMIC_WEIGHTS, "static")


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
    return _Triton.apply(pre, post, sight, q, k, v, *_held(pre), *_held(post))


def _held(stage: ComposeWeights | None) -> list[Tensor | None]:
    return [None if stage is None else getattr(stage, name) for name in WEIGHTS]


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
        ctx.save_for_backward(q, k, v, *weights)
        held = iter(weights)
        return _launch(q, k, v, _stage(pre, held), _stage(post, held), sight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Computes the output again by the portable path, in float32, and differentiates that."""

        def attend(held: Sequence[Any]) -> Tensor:
            q, k, v, *rest = held
            weights = iter([x if x is None else x.float() for x in rest])
            stages = [_stage(bare, weights) for bare in ctx.bare]
            return chunked_attention(q.float(), k.float(), v.float(), *stages, sight=ctx.sight)

        return None, None, None, *by_autograd(attend, ctx.saved_tensors, ctx.needs_input_grad[3:], grad.float())


def _launch(
    q: Tensor, k: Tensor, v: Tensor, pre: ComposeWeights | None, post: ComposeWeights | None, sight: Sight
) -> Tensor:
    batch, heads, queries, width = q.shape
    shared, keys = k.shape[1:3]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if out.numel() == 0:
        return out
    mask = sight.allowed
    if mask is not None:
        mask = mask.expand(batch, 1, queries, keys).to(torch.int8).contiguous()
    weights = [None if w is None else w.contiguous() for w in (*_held(pre), *_held(post))]
    kernel: Any = _forward
    kernel[(triton.cdiv(queries, TILE), batch)](
        q.contiguous(), k.contiguous(), v.contiguous(), out, mask, *weights, queries, keys, width**-0.5,
        **_sizes("pre", pre), **_sizes("post", post),
        heads=heads, shared=shared, padded=triton.next_power_of_2(heads),
        width=width, wide=max(16, triton.next_power_of_2(width)),
        causal=sight.causal, window=sight.window or 0,
        # Blocks that the rule hides may be left out unless some row sees nothing: that one attends evenly to all.
        cut=sight.causal and mask is None and keys >= queries, tile=TILE, block=BLOCK,
    )  # fmt: skip
    return out


def _sizes(name: str, stage: ComposeWeights | None) -> dict[str, int]:
    ranks = [0 if stage is None or w is None else w.shape[2] for w in (stage and stage.w_q1, stage and stage.w_k1)]
    groups, skip = (1, 1) if stage is None else (stage.groups, int(stage.skip))
    return {f"{name}_rank_q": ranks[0], f"{name}_rank_k": ranks[1], f"{name}_groups": groups, f"{name}_skip": skip}


def _jit(function):
    """As `triton.jit`, which reads the source and must not get the wrapper of a type checker of the tests."""
    return triton.jit(inspect.unwrap(function))


@_jit
def _weight(w, at, stride, offset, h, ok, query: tl.constexpr):
    """w[at, offset + h] as [head, query, 1] or [head, 1, key], zero where not `ok` [head, position]."""
    x = tl.load(w + at[None, :] * stride + offset + h[:, None], mask=ok, other=0.0).to(tl.float32)
    if query:
        return x[:, :, None]
    else:
        return x[:, None, :]


@_jit
def _side(a, w1, w2, wg, at, at_ok, heads: tl.constexpr, padded: tl.constexpr, rank: tl.constexpr,
          groups: tl.constexpr, query: tl.constexpr):  # fmt: skip
    """The low-rank branch and the gate of one side: of the queries, or of the keys."""
    h = tl.arange(0, padded)
    total = a * 0.0
    if rank > 0:
        for r in tl.static_range(rank):
            for g in tl.static_range(groups):
                ok = ((h < heads) & (h // (heads // groups) == g))[:, None] & at_ok[None, :]
                gathered = tl.sum(a * _weight(w1, at, rank * heads, r * heads, h, ok, query), 0)
                total += _weight(w2, at, rank * heads, r * heads, h, ok, query) * gathered[None, :, :]
    if wg is not None:
        total += a * _weight(wg, at, heads, 0, h, (h < heads)[:, None] & at_ok[None, :], query)
    return total


@_jit
def _compose(a, w_q1, w_q2, w_qg, w_k1, w_k2, w_kg, static, t, s, t_ok, s_ok, heads: tl.constexpr,
             padded: tl.constexpr, rank_q: tl.constexpr, rank_k: tl.constexpr, groups: tl.constexpr,
             skip: tl.constexpr):  # fmt: skip
    """Compose(A) for a [head, query, key]; `t` and `s` count positions through the whole batch."""
    h = tl.arange(0, padded)
    total = a * skip
    if static is not None:
        for f in range(heads):
            row = tl.sum(tl.where((h == f)[:, None, None], a, 0.0), 0)
            to = tl.load(static + f * heads + h, mask=h < heads, other=0.0).to(tl.float32)
            total += to[:, None, None] * row[None, :, :]
    total += _side(a, w_q1, w_q2, w_qg, t, t_ok, heads, padded, rank_q, groups, True)
    total += _side(a, w_k1, w_k2, w_kg, s, s_ok, heads, padded, rank_k, groups, False)
    return total


@_jit
def _hide(a, mask, b, t, s, queries, keys, causal: tl.constexpr, window: tl.constexpr):
    """The lowest finite number where the query may not look, as `mask_scores`, and -inf past the last key."""
    ahead = t[:, None] + (keys - queries) - s[None, :]
    seen = (t >= 0)[:, None] & (s < keys)[None, :]
    if causal:
        seen = seen & (ahead >= 0)
        if window > 0:
            seen = seen & (ahead < window)
    if mask is not None:
        inside = (t < queries)[:, None] & (s < keys)[None, :]
        seen = seen & (tl.load(mask + (b * queries + t[:, None]) * keys + s[None, :], mask=inside, other=0) != 0)
    a = tl.where(seen[None, :, :], a, -3.4028234663852886e38)
    return tl.where((s < keys)[None, None, :], a, float("-inf"))


@_jit
def _forward(
    q, k, v, out, mask,
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
    t, h, d = tile_start + tl.arange(0, tile), tl.arange(0, padded)[:, None, None], tl.arange(0, wide)[None, None, :]
    t_ok = t < queries
    low, high = 0, keys
    if cut:
        high = tl.minimum(keys, keys - queries + tile_start + tile)
        if window > 0:
            low = tl.maximum(0, keys - queries + tile_start + 1 - window) // block * block
    at_q = ((b * heads + h) * queries + t[None, :, None]) * width + d
    q_ok = (h < heads) & t_ok[None, :, None] & (d < width)
    x = tl.load(q + at_q, mask=q_ok, other=0.0).to(tl.float32) * scale
    top = tl.full([padded, tile], float("-inf"), tl.float32)
    total = tl.zeros([padded, tile], tl.float32)
    acc = tl.zeros([padded, tile, wide], tl.float32)
    for sweep in tl.static_range(2):
        for start in range(low, high, block):
            s = start + tl.arange(0, block)
            # As many consecutive heads read the same keys and values.
            at_k = ((b * shared + h // (heads // shared)) * keys + s[None, :, None]) * width + d
            k_ok = (h < heads) & (s < keys)[None, :, None] & (d < width)
            y = tl.load(k + at_k, mask=k_ok, other=0.0).to(tl.float32)
            a = tl.dot(x, tl.permute(y, (0, 2, 1)), input_precision="ieee")
            a = _compose(a, pre_q1, pre_q2, pre_qg, pre_k1, pre_k2, pre_kg, pre_static, b * queries + t, b * keys + s,
                         t_ok, s < keys, heads, padded, pre_rank_q, pre_rank_k, pre_groups, pre_skip)  # fmt: skip
            a = _hide(a, mask, b, t, s, queries, keys, causal, window)
            if sweep == 0:
                new = tl.maximum(top, tl.max(a, 2))
                total = total * tl.exp(top - new) + tl.sum(tl.exp(a - new[:, :, None]), 2)
                top = new
            else:
                a = tl.exp(a - top[:, :, None]) / total[:, :, None]
                a = _compose(a, post_q1, post_q2, post_qg, post_k1, post_k2, post_kg, post_static, b * queries + t,
                             b * keys + s, t_ok, s < keys, heads, padded, post_rank_q, post_rank_k, post_groups,
                             post_skip)  # fmt: skip
                z = tl.load(v + at_k, mask=k_ok, other=0.0).to(tl.float32)
                acc += tl.dot(a, z, input_precision="ieee")
    tl.store(out + at_q, acc.to(out.dtype.element_ty), mask=q_ok)
