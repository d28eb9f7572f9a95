"""The portable fast path: blocks of queries against the keys that they see, and which of two ways computes them.

Where a pair's scores are made of that pair's alone, `blockwise` composes them, with gradients written by hand. What it
cannot do goes by autograd: terms that read other pairs or the layer before, gradients of gradients, transforms of
torch.func, forward mode, autocast, and graphs of torch.compile. There the query side is one H x H map of the heads'
rows for every query and the key side one for every key (`branches.head_maps`), and other terms are added as the
definition has them. Long inputs go in chunks; under autograd a chunk keeps its inputs only and computes the rest again
in the backward pass. A chunk starts some queries early where a convolution reads them, and drops what comes out of
these.

Either way memory grows with the length and not with its square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dcinterp.model.compose.branches import ComposeWeights, earlier, head_maps, neighbours
from dcinterp.model.kernels.blockwise import WEIGHTS, Blockwise, block_mask, seen_keys
from dcinterp.model.kernels.gradients import beyond_numbers, by_autograd, transformed
from dcinterp.model.kernels.reference import KeyHeads, QueryHeads, dot_keys, read_values, reference_attention
from dcinterp.model.mask import Sight, mask_scores
from dcinterp.shapes import Attention, Mask

WHOLE_NUMBERS, CHUNK_NUMBERS = 1 << 23, 1 << 21
"""By autograd: numbers of an attention matrix that are computed in one piece, and that else one of a chunk may hold."""
FEW_PAIRS = 1 << 12
"""Pairs of a query and a key up to which autograd's few large operations are faster than blocks by hand."""
BLOCK_NUMBERS = {"cpu": 1 << 18}
"""By hand: numbers of the attention matrix of a block, by device; `CHUNK_NUMBERS` on others. A processor's cache should
hold a few of them, and a block has some hundred operations."""


def chunked_attention(
    q: QueryHeads,
    k: KeyHeads,
    v: KeyHeads,
    pre: ComposeWeights | None = None,
    post: ComposeWeights | None = None,
    *,
    sight: Sight,
    chunk: int | None = None,
) -> QueryHeads:
    """What `reference_attention` computes, to rounding.

    Args:
        q, k, v: [batch, head or kv_head, query or key, d_head].
        pre, post: weights of the two stages; None for a stage that does not exist.
        sight: who sees whom.
        chunk: queries at a time, at least; when None as many as `BLOCK_NUMBERS` or `CHUNK_NUMBERS` allow.

    Memory: of the scores a few blocks of that size, and for every query a map over heads, [query, head, head].
    """
    held = (q, k, v, *_held(pre), *_held(post))
    few = chunk is None and q.shape[2] * k.shape[2] <= FEW_PAIRS
    if few or _by_autograd(q, pre, post):
        return autograd_attention(q, k, v, pre, post, sight=sight, chunk=chunk)
    numbers = BLOCK_NUMBERS.get(q.device.type, CHUNK_NUMBERS) if chunk is None else chunk * q.shape[1] * k.shape[2]
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in held):
        found: Tensor = _ByHand.apply((_bare(pre), _bare(post)), sight, numbers, *held)
        return found
    return Blockwise(q, k, v, pre, post, sight, numbers, grads=False).forward()


def _by_autograd(q: Tensor, pre: ComposeWeights | None, post: ComposeWeights | None) -> bool:
    """Whether autograd, or a tracer, has to see every operation, or there is none."""
    return (
        any(stage is not None and stage.reads_beyond() for stage in (pre, post))
        or torch.compiler.is_compiling()
        or transformed()
        or (torch.amp.is_autocast_available(q.device.type) and torch.is_autocast_enabled(q.device.type))
        or q.numel() == 0
    )


class _ByHand(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, bare: Stages, sight: Sight, numbers: int, q: Tensor, k: Tensor, v: Tensor, *rest: Any
    ) -> Tensor:
        # Of the stages only the flags are kept, so that no weight escapes the bookkeeping of autograd.
        ctx.bare, ctx.sight, ctx.numbers = bare, sight, numbers
        ctx.save_for_backward(q, k, v, *rest)
        return Blockwise(q, k, v, *_stages(bare, rest), sight, numbers, grads=False).forward()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        inputs, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        if beyond_numbers(grad):

            def attend(held: Sequence[Any]) -> Tensor:
                q, k, v, *rest = held
                return autograd_attention(q, k, v, *_stages(ctx.bare, rest), sight=ctx.sight)

            return None, None, None, *by_autograd(attend, inputs, needed, grad)
        q, k, v, *rest = inputs
        made: list[Tensor | None] = []
        with _without_autocast(q):  # of which the way forward knew nothing
            call = Blockwise(q, k, v, *_stages(ctx.bare, rest), ctx.sight, ctx.numbers, grads=True)
            made += call.backward(grad)
            for stage in (call.pre, call.post):
                of = {} if stage is None else stage.gradients()
                made += [of.get(name) for name in WEIGHTS]
        return (
            None,
            None,
            None,
            *(x.to(of.dtype) if need else None for x, of, need in zip(made, inputs, needed, strict=True)),
        )


def _without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    device = like.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _held(stage: ComposeWeights | None) -> list[Tensor | None]:
    return [None if stage is None else getattr(stage, name) for name in WEIGHTS]


def _bare(stage: ComposeWeights | None) -> ComposeWeights | None:
    """Its flags."""
    none: dict[str, Any] = dict.fromkeys(WEIGHTS)
    return None if stage is None else replace(stage, **none)


Stages = tuple[ComposeWeights | None, ComposeWeights | None]


def _stages(bare: Stages, weights: Iterable[Tensor | None]) -> Stages:
    """What `_bare` and `_held` were made from."""
    held = iter(weights)
    stages: list[ComposeWeights | None] = []
    for stage in bare:
        named: dict[str, Any] = {name: next(held) for name in WEIGHTS}
        stages.append(None if stage is None else replace(stage, **named))
    return stages[0], stages[1]


def autograd_attention(
    q: QueryHeads,
    k: KeyHeads,
    v: KeyHeads,
    pre: ComposeWeights | None = None,
    post: ComposeWeights | None = None,
    *,
    sight: Sight,
    chunk: int | None = None,
) -> QueryHeads:
    """The same of operations that autograd knows, as often differentiable as one likes.

    With `chunk` None, all queries at a time up to `WHOLE_NUMBERS`, and then as many as `CHUNK_NUMBERS` allow.
    """
    queries, keys = q.shape[2], k.shape[2]
    if chunk is None:
        one_query = q.shape[0] * q.shape[1] * keys
        chunk = queries if queries * one_query <= WHOLE_NUMBERS else max(16, CHUNK_NUMBERS // one_query)
    if queries <= chunk:
        return headmix_attention(q, k, v, pre, post, mask=sight.dense(queries, keys, q.device))
    return _in_chunks(q, k, v, pre, post, sight, chunk, headmix_attention)


def chunked_or_equation(
    q: QueryHeads,
    k: KeyHeads,
    v: KeyHeads,
    pre: ComposeWeights | None = None,
    post: ComposeWeights | None = None,
    *,
    sight: Sight,
    scan: bool,
) -> QueryHeads:
    """`chunked_attention`, and `equation_in_chunks` where numbers are not finite, if they may be looked at (`scan`)."""
    if scan and not all_finite(q, k, v, pre, post):
        return equation_in_chunks(q, k, v, pre, post, sight=sight)
    out = chunked_attention(q, k, v, pre, post, sight=sight)
    if scan and not finite(out):  # scores that overflow, of finite inputs
        return equation_in_chunks(q, k, v, pre, post, sight=sight)
    return out


def equation_in_chunks(
    q: QueryHeads,
    k: KeyHeads,
    v: KeyHeads,
    pre: ComposeWeights | None = None,
    post: ComposeWeights | None = None,
    *,
    sight: Sight,
) -> QueryHeads:
    """`reference_attention` itself, some queries at a time against all keys: for inputs with NaN and infinity.

    Neither may heads be mixed by maps, nor hidden keys be left out, nor terms be added up in another order, if every
    NaN of the equation is to appear here, and no other: 0 * NaN is NaN.
    """
    chunk = max(1, CHUNK_NUMBERS // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
    return _in_chunks(q, k, v, pre, post, sight, chunk, reference_attention, all_keys=True)


def _in_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pre: ComposeWeights | None,
    post: ComposeWeights | None,
    sight: Sight,
    chunk: int,
    attend: Callable[..., Tensor],
    *,
    all_keys: bool = False,
) -> Tensor:
    """`attend` on `chunk` queries at a time, with `all_keys` or with those that they see."""
    queries, keys, again = q.shape[2], k.shape[2], torch.is_grad_enabled()
    # What a convolution after the softmax reads is made of what one before it reads.
    early = sum(stage.taps_back() for stage in (pre, post) if stage is not None)
    # Handed-on scores that are added after the softmax may lie on hidden keys too, and nothing hides them again.
    all_keys = all_keys or (post is not None and post.previous is not None)
    outs = []
    for start in range(0, queries, chunk):
        # Queries in the order of their first key's place on the axis of keys.
        rows = slice(max(0, start - early), min(start + chunk, queries))
        seen = slice(0, keys) if all_keys else seen_keys(sight, rows, queries, keys)
        inputs = (q, k, v, pre, post, sight, rows, seen, attend)
        out = checkpoint(_chunk, *inputs, use_reentrant=False) if again else _chunk(*inputs)
        outs.append(out[:, :, start - rows.start :])
    return torch.cat(outs, dim=2)


def all_finite(q: Tensor, k: Tensor, v: Tensor, pre: ComposeWeights | None, post: ComposeWeights | None) -> bool:
    """Whether the inputs hold neither NaN nor infinity; waits for their device."""
    held = [q, k, v]
    for stage in (pre, post):
        if stage is not None:
            others = (stage.static, stage.bias, stage.conv, stage.previous, stage.before)
            held += [w for _, w in stage.dynamic()] + [w for w in others if w is not None]
    return all(map(finite, held))


@torch.no_grad()
def finite(x: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity; waits for its device."""
    # A sum is one pass and no copy; where large numbers overflow in it, look again.
    return math.isfinite(x.sum().item()) or bool(x.isfinite().all())


def headmix_attention(
    q: QueryHeads,
    k: KeyHeads,
    v: KeyHeads,
    pre: ComposeWeights | None = None,
    post: ComposeWeights | None = None,
    *,
    mask: Mask | None = None,
) -> QueryHeads:
    """The same in one piece; `mask` is True where a query may look, None for everywhere."""
    scores = dot_keys(q * (1 / math.sqrt(q.shape[-1])), k)
    weights = mask_scores(_compose(scores, pre, mask), mask).softmax(-1)
    return read_values(_compose(weights, post, mask), v)


def _compose(a: Attention, w: ComposeWeights | None, mask: Mask | None) -> Attention:
    """Compose(A) through its maps over heads, and what it reads beyond the pair."""
    out = mix_heads(a, w)
    if w is not None and w.conv is not None:
        out = out + neighbours(a, w.conv, w.groups, mask)
    if w is not None and w.previous is not None:
        out = out + earlier(a, w.previous, w.before)
    return out


def _chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pre: ComposeWeights | None,
    post: ComposeWeights | None,
    sight: Sight,
    rows: slice,
    seen: slice,
    attend: Callable[..., Tensor],
) -> Tensor:
    stages = (_cut(stage, rows, seen) for stage in (pre, post))
    mask = block_mask(sight, rows, seen, q.shape[2], k.shape[2], q.device)
    return attend(q[:, :, rows], k[:, :, seen], v[:, :, seen], *stages, mask=mask)


def _cut(stage: ComposeWeights | None, rows: slice, seen: slice) -> ComposeWeights | None:
    if stage is None:
        return None
    cut: dict[str, Any] = {name: w[:, rows if name.startswith("w_q") else seen] for name, w in stage.dynamic()}
    if stage.before is not None:
        cut["before"] = stage.before[:, :, rows, seen]
    return replace(stage, **cut)


def mix_heads(a: Attention, w: ComposeWeights | None) -> Attention:
    """Compose(A) through the two maps over heads; a bias is no map, and is not added here (see `bias`)."""
    if w is None:
        return a
    by_query, by_key = head_maps(w)
    parts = []
    if by_query is not None:
        parts.append((by_query @ a.transpose(1, 2)).transpose(1, 2))
    elif w.skip:
        parts.append(a)
    if by_key is not None:
        # [batch, key, head, query] on the right of the map: the key is the batch of the product.
        parts.append((by_key @ a.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))
    if not parts:
        return a * 0
    return parts[0] + parts[1] if len(parts) == 2 else parts[0]
