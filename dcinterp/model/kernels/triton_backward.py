# mypy: disable-error-code="no-untyped-def"
"""EXPERIMENTAL: the gradients of composed attention as Triton kernels.

`triton_kernel` says where they have run. With P the softmax's weights, G = Compose_post^T(dO V^T)
their gradient, and S the scaled products of queries and keys,

    D[h, t]             = sum_s P G                 (composed again, this is not the sum of dO O any more)
    d Compose_pre(S)    = P (G - D) where a query may look, else 0
    dS                  = Compose_pre^T of that

and Compose^T is Compose with the two factors of each low-rank branch, and the two axes of the static map, exchanged.
Two kernels compute every block of scores again and keep none. A program of the first takes a tile of queries and sweeps
the keys twice: for D, then for the gradients that belong to queries and for its share of those of the static maps. A
program of the second takes a block of keys and sweeps the queries, for what belongs to keys. So each number is
written by one program, and the same inputs give the same bits. All heads are in a program, sums are float32, and memory
is linear in the length.

Importing it needs triton.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels.triton_compose import (
    BLOCK,
    OPTIONS,
    TILE,
    compose,
    constants,
    contiguous,
    device_function,
    held,
    kernel,
    keys_of_tile,
    load_heads,
    load_weight,
    mask_bytes,
    pairs_seen,
    products,
    row_places,
    softmax_again,
    store_heads,
    tl,
    triton,
)
from dcinterp.model.mask import Sight

STATICS = (9, 16)
"""Where among q, k, v and the weights of both stages the static maps are."""


def triton_gradients(
    d_out: Tensor,
    denominators: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pre: ComposeWeights | None,
    post: ComposeWeights | None,
    *,
    sight: Sight,
) -> list[Tensor | None]:
    """Gradients of q, k, v and the seven weights of each stage, in their types; None where there is no such weight.

    Args:
        d_out: [batch, head, query, d_head], the gradient of the output.
        denominators: [batch, head, query], float32, as the forward pass has found them.
        q, k, v, pre, post, sight: what it was given.
    """
    batch, heads, queries, width = q.shape
    inputs = contiguous([q, k, v, *held(pre), *held(post)])
    found = [None if x is None else torch.empty_like(x) for x in inputs]
    d_q, d_k, d_v, *d_pre = found[:9]
    d_post = found[10:16]
    tiles, blocks = triton.cdiv(queries, TILE), triton.cdiv(k.shape[2], BLOCK)
    # Every program has a share in the static maps' gradients.
    maps = {of: x for of in STATICS if (x := inputs[of]) is not None}
    shares = {of: x.new_empty(batch * tiles, heads, heads, dtype=torch.float32) for of, x in maps.items()}
    pre_share, post_share = (shares.get(of) for of in STATICS)
    sums = torch.empty_like(denominators)
    read = (*contiguous([d_out]), denominators, sums, *mask_bytes(sight.allowed))
    numbers = (queries, k.shape[2], width**-0.5)
    for_both: dict[str, Any] = {**constants(q, k, pre, post, sight), "ranks": _ranks(pre, post), **OPTIONS}
    by_queries: Any = queries_kernel
    by_keys: Any = keys_kernel
    with torch.cuda.device_of(q):  # Triton launches on the current device
        by_queries[(tiles, batch)](
            *inputs[:3], *read, *inputs[3:], d_q, *d_pre[:3], pre_share, *d_post[:3], post_share, *numbers, **for_both
        )
        by_keys[(blocks, batch)](
            *inputs[:3], *read, *inputs[3:], d_k, d_v, *d_pre[3:], *d_post[3:], *numbers, **for_both
        )
    for of, share in shares.items():
        found[of] = share.sum(0).to(maps[of].dtype)
    return found


def _ranks(*stages: ComposeWeights | None) -> int:
    """The largest rank of any branch, or the next power of two."""
    factors = [w for stage in stages if stage is not None for w in (stage.w_q1, stage.w_k1) if w is not None]
    return triton.next_power_of_2(max([1, *(w.shape[2] for w in factors)]))


@device_function
def _learn_side(a, grad, w1, w2, wg, d1, d2, dg, at, at_ok, heads: tl.constexpr, padded: tl.constexpr,
                rank: tl.constexpr, ranks: tl.constexpr, groups: tl.constexpr, axis: tl.constexpr):  # fmt: skip
    """Adds to the gradients of one side's weights, from A and the gradient of Compose(A).

    d1 and d2 are [rank, head, position] with `ranks`, a power of two, dg is [head, position]; `axis` is summed over.
    """
    h, n = tl.arange(0, padded), tl.arange(0, ranks)
    if rank > 0:
        for r in tl.static_range(rank):
            for g in tl.static_range(groups):
                ok = ((h < heads) & (h // (heads // groups) == g))[:, None] & at_ok[None, :]
                one = load_weight(w1, at, rank * heads, r * heads, h, ok, axis == 2)
                two = load_weight(w2, at, rank * heads, r * heads, h, ok, axis == 2)
                found1 = tl.sum(a * tl.sum(grad * two, 0)[None, :, :], axis)
                found2 = tl.sum(grad * tl.sum(a * one, 0)[None, :, :], axis)
                here = (n == r)[:, None, None] & ok[None, :, :]
                d1 += tl.where(here, found1[None, :, :], 0.0)
                d2 += tl.where(here, found2[None, :, :], 0.0)
    if wg is not None:
        dg += tl.sum(a * grad, axis)
    return d1, d2, dg


@device_function
def _learn_static(a, grad, static, total, heads: tl.constexpr, padded: tl.constexpr):
    """Adds to the gradient of the static map, [head_from, head_to]."""
    h = tl.arange(0, padded)
    if static is not None:
        for f in range(heads):
            row = tl.sum(tl.where((h == f)[:, None, None], a, 0.0), 0)
            found = tl.sum(tl.sum(grad * row[None, :, :], 2), 1)
            total += tl.where((h == f)[:, None], found[None, :], 0.0)
    return total


@device_function
def _store_side(d1, d2, dg, w1, w2, wg, at, at_ok, heads: tl.constexpr, padded: tl.constexpr, rank: tl.constexpr,
                ranks: tl.constexpr):  # fmt: skip
    """Writes what `_learn_side` has summed."""
    h, n = tl.arange(0, padded), tl.arange(0, ranks)
    if rank > 0:
        place = (at[None, None, :] * rank + n[:, None, None]) * heads + h[None, :, None]
        ok = (n < rank)[:, None, None] & (h < heads)[None, :, None] & at_ok[None, None, :]
        tl.store(w1 + place, d1.to(w1.dtype.element_ty), mask=ok)
        tl.store(w2 + place, d2.to(w2.dtype.element_ty), mask=ok)
    if wg is not None:
        ok = (h < heads)[:, None] & at_ok[None, :]
        tl.store(wg + at[None, :] * heads + h[:, None], dg.to(wg.dtype.element_ty), mask=ok)


@device_function
def _store_static(total, share, program, heads: tl.constexpr, padded: tl.constexpr):
    """Writes a program's share of a static map's gradient."""
    h = tl.arange(0, padded)
    if share is not None:
        place = (program * heads + h[:, None]) * heads + h[None, :]
        tl.store(share + place, total, mask=(h < heads)[:, None] & (h < heads)[None, :])


@kernel
def queries_kernel(
    q, k, v, d_out, denominators, sums, mask, mask_b, mask_t, mask_s,
    pre_q1, pre_q2, pre_qg, pre_k1, pre_k2, pre_kg, pre_static,
    post_q1, post_q2, post_qg, post_k1, post_k2, post_kg, post_static,
    d_q, d_pre_q1, d_pre_q2, d_pre_qg, pre_share, d_post_q1, d_post_q2, d_post_qg, post_share,
    queries, keys, scale,
    pre_rank_q: tl.constexpr, pre_rank_k: tl.constexpr, pre_groups: tl.constexpr, pre_skip: tl.constexpr,
    post_rank_q: tl.constexpr, post_rank_k: tl.constexpr, post_groups: tl.constexpr, post_skip: tl.constexpr,
    heads: tl.constexpr, shared: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, wide: tl.constexpr,
    causal: tl.constexpr, window: tl.constexpr, cut: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
    ranks: tl.constexpr,
):  # fmt: skip
    """Of a tile of queries: D, which it writes to `sums`, and the gradients of queries and their weights."""
    tile_start = tl.program_id(0) * tile
    b = tl.program_id(1).to(tl.int64)
    t = tile_start + tl.arange(0, tile)
    at, at_ok = b * queries + t, t < queries
    low, high = keys_of_tile(tile_start, queries, keys, cut, window, tile, block)
    row_at, row_ok = row_places(b, t, queries, heads, padded)
    row = tl.load(denominators + row_at, mask=row_ok, other=0.0)
    total = tl.zeros([padded, tile], tl.float32)
    acc = tl.zeros([padded, tile, wide], tl.float32)
    pre1 = tl.zeros([ranks, padded, tile], tl.float32)
    pre2 = tl.zeros([ranks, padded, tile], tl.float32)
    post1 = tl.zeros([ranks, padded, tile], tl.float32)
    post2 = tl.zeros([ranks, padded, tile], tl.float32)
    pre_gate = tl.zeros([padded, tile], tl.float32)
    post_gate = tl.zeros([padded, tile], tl.float32)
    pre_map = tl.zeros([padded, padded], tl.float32)
    post_map = tl.zeros([padded, padded], tl.float32)
    for sweep in tl.static_range(2):
        for start in range(low, high, block):
            s = start + tl.arange(0, block)
            seen = pairs_seen(mask, mask_b, mask_t, mask_s, b, t, s, queries, keys, causal, window)
            scores = products(q, k, b, t, s, queries, keys, heads // shared, heads, padded, width, tile, block) * scale
            composed = compose(scores, pre_q1, pre_q2, pre_qg, pre_k1, pre_k2, pre_kg, pre_static, b, t, s, queries,
                               keys, pre_rank_q, pre_rank_k, pre_groups, pre_skip, heads, padded, False)  # fmt: skip
            weights = softmax_again(composed, row, seen, s, keys)
            read = products(d_out, v, b, t, s, queries, keys, heads // shared, heads, padded, width, tile, block)
            grad = compose(read, post_q1, post_q2, post_qg, post_k1, post_k2, post_kg, post_static, b, t, s, queries,
                           keys, post_rank_q, post_rank_k, post_groups, post_skip, heads, padded, True)  # fmt: skip
            if sweep == 0:
                total += tl.sum(weights * grad, 2)
            else:
                post1, post2, post_gate = _learn_side(weights, read, post_q1, post_q2, post_qg, post1, post2, post_gate,
                                                      at, at_ok, heads, padded, post_rank_q, ranks, post_groups,
                                                      2)  # fmt: skip
                post_map = _learn_static(weights, read, post_static, post_map, heads, padded)
                grad = tl.where(seen[None, :, :], weights * (grad - total[:, :, None]), 0.0)
                pre1, pre2, pre_gate = _learn_side(scores, grad, pre_q1, pre_q2, pre_qg, pre1, pre2, pre_gate, at,
                                                   at_ok, heads, padded, pre_rank_q, ranks, pre_groups, 2)  # fmt: skip
                pre_map = _learn_static(scores, grad, pre_static, pre_map, heads, padded)
                grad = compose(grad, pre_q1, pre_q2, pre_qg, pre_k1, pre_k2, pre_kg, pre_static, b, t, s,
                               queries, keys, pre_rank_q, pre_rank_k, pre_groups, pre_skip, heads, padded,
                               True)  # fmt: skip
                y = load_heads(k, b, s, keys, 0, heads // shared, heads, padded, width, wide)
                acc += tl.dot(grad, y, input_precision="ieee")
    tl.store(sums + row_at, total, mask=row_ok)
    store_heads(d_q, acc * scale, b, t, queries, heads, padded, width, wide)
    _store_side(pre1, pre2, pre_gate, d_pre_q1, d_pre_q2, d_pre_qg, at, at_ok, heads, padded, pre_rank_q, ranks)
    _store_side(post1, post2, post_gate, d_post_q1, d_post_q2, d_post_qg, at, at_ok, heads, padded, post_rank_q, ranks)
    program = b * tl.num_programs(0) + tl.program_id(0)
    _store_static(pre_map, pre_share, program, heads, padded)
    _store_static(post_map, post_share, program, heads, padded)


@device_function
def _store_shared(out, x, b, s, keys, shared: tl.constexpr, heads: tl.constexpr, padded: tl.constexpr,
                  width: tl.constexpr, wide: tl.constexpr):  # fmt: skip
    """x [head, key, d_head], summed over the heads that share keys and values, to out[b, :, s]."""
    h, d = tl.arange(0, padded), tl.arange(0, wide)
    for of in range(shared):
        own = (h < heads) & (h // (heads // shared) == of)
        found = tl.sum(tl.where(own[:, None, None], x, 0.0), 0)
        place = ((b * shared + of) * keys + s[:, None]) * width + d[None, :]
        tl.store(out + place, found.to(out.dtype.element_ty), mask=(s < keys)[:, None] & (d < width)[None, :])


@kernel
def keys_kernel(
    q, k, v, d_out, denominators, sums, mask, mask_b, mask_t, mask_s,
    pre_q1, pre_q2, pre_qg, pre_k1, pre_k2, pre_kg, pre_static,
    post_q1, post_q2, post_qg, post_k1, post_k2, post_kg, post_static,
    d_k, d_v, d_pre_k1, d_pre_k2, d_pre_kg, d_post_k1, d_post_k2, d_post_kg,
    queries, keys, scale,
    pre_rank_q: tl.constexpr, pre_rank_k: tl.constexpr, pre_groups: tl.constexpr, pre_skip: tl.constexpr,
    post_rank_q: tl.constexpr, post_rank_k: tl.constexpr, post_groups: tl.constexpr, post_skip: tl.constexpr,
    heads: tl.constexpr, shared: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, wide: tl.constexpr,
    causal: tl.constexpr, window: tl.constexpr, cut: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
    ranks: tl.constexpr,
):  # fmt: skip
    """Of a block of keys: the gradients of keys, values and their weights, with D read from `sums`."""
    block_start = tl.program_id(0) * block
    b = tl.program_id(1).to(tl.int64)
    s = block_start + tl.arange(0, block)
    at, at_ok = b * keys + s, s < keys
    low, high = block_start * 0, queries
    if cut:
        # From the query in the slot of the first key to the last one that has the last key in its window.
        low = tl.maximum(0, block_start - (keys - queries)) // tile * tile
        if window > 0:
            high = tl.minimum(queries, block_start + block - 1 + window - (keys - queries))
    acc_k = tl.zeros([padded, block, wide], tl.float32)
    acc_v = tl.zeros([padded, block, wide], tl.float32)
    pre1 = tl.zeros([ranks, padded, block], tl.float32)
    pre2 = tl.zeros([ranks, padded, block], tl.float32)
    post1 = tl.zeros([ranks, padded, block], tl.float32)
    post2 = tl.zeros([ranks, padded, block], tl.float32)
    pre_gate = tl.zeros([padded, block], tl.float32)
    post_gate = tl.zeros([padded, block], tl.float32)
    for start in range(low, high, tile):
        t = start + tl.arange(0, tile)
        row_at, row_ok = row_places(b, t, queries, heads, padded)
        row = tl.load(denominators + row_at, mask=row_ok, other=0.0)
        total = tl.load(sums + row_at, mask=row_ok, other=0.0)
        seen = pairs_seen(mask, mask_b, mask_t, mask_s, b, t, s, queries, keys, causal, window)
        scores = products(q, k, b, t, s, queries, keys, heads // shared, heads, padded, width, tile, block) * scale
        composed = compose(scores, pre_q1, pre_q2, pre_qg, pre_k1, pre_k2, pre_kg, pre_static, b, t, s, queries, keys,
                           pre_rank_q, pre_rank_k, pre_groups, pre_skip, heads, padded, False)  # fmt: skip
        weights = softmax_again(composed, row, seen, s, keys)
        read = products(d_out, v, b, t, s, queries, keys, heads // shared, heads, padded, width, tile, block)
        grad = compose(read, post_q1, post_q2, post_qg, post_k1, post_k2, post_kg, post_static, b, t, s, queries, keys,
                       post_rank_q, post_rank_k, post_groups, post_skip, heads, padded, True)  # fmt: skip
        pattern = compose(weights, post_q1, post_q2, post_qg, post_k1, post_k2, post_kg, post_static, b, t, s,
                          queries, keys, post_rank_q, post_rank_k, post_groups, post_skip, heads, padded,
                          False)  # fmt: skip
        up = load_heads(d_out, b, t, queries, 0, 1, heads, padded, width, wide)
        acc_v += tl.dot(tl.permute(pattern, (0, 2, 1)), up, input_precision="ieee")
        post1, post2, post_gate = _learn_side(weights, read, post_k1, post_k2, post_kg, post1, post2, post_gate, at,
                                              at_ok, heads, padded, post_rank_k, ranks, post_groups, 1)  # fmt: skip
        grad = tl.where(seen[None, :, :], weights * (grad - total[:, :, None]), 0.0)
        pre1, pre2, pre_gate = _learn_side(scores, grad, pre_k1, pre_k2, pre_kg, pre1, pre2, pre_gate, at, at_ok,
                                           heads, padded, pre_rank_k, ranks, pre_groups, 1)  # fmt: skip
        grad = compose(grad, pre_q1, pre_q2, pre_qg, pre_k1, pre_k2, pre_kg, pre_static, b, t, s,
                       queries, keys, pre_rank_q, pre_rank_k, pre_groups, pre_skip, heads, padded,
                       True)  # fmt: skip
        x = load_heads(q, b, t, queries, 0, 1, heads, padded, width, wide)
        acc_k += tl.dot(tl.permute(grad, (0, 2, 1)), x, input_precision="ieee")
    _store_shared(d_k, acc_k * scale, b, s, keys, shared, heads, padded, width, wide)
    _store_shared(d_v, acc_v, b, s, keys, shared, heads, padded, width, wide)
    _store_side(pre1, pre2, pre_gate, d_pre_k1, d_pre_k2, d_pre_kg, at, at_ok, heads, padded, pre_rank_k, ranks)
    _store_side(post1, post2, post_gate, d_post_k1, d_post_k2, d_post_kg, at, at_ok, heads, padded, post_rank_k, ranks)
