"""The portable fast path: composing as small matrix products over heads, a chunk of queries at a time.

For one query the skip, the static map, the query-side projection and gate are a single H x H map of the heads' rows,
and for one key the key side is another (`branches.head_maps`). Two batched matrix products per stage replace the
twelve passes over A of the branch-by-branch definition.

Long inputs go in chunks of queries against the keys that they see; under autograd a chunk keeps its inputs only and
computes the rest again in the backward pass, so that memory grows with the length and not with its square.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dcinterp.model.compose.branches import ComposeWeights, head_maps
from dcinterp.model.kernels.reference import KeyHeads, QueryHeads, dot_keys, read_values, reference_attention
from dcinterp.model.mask import Sight, mask_scores
from dcinterp.shapes import Attention, Mask

WHOLE_NUMBERS, CHUNK_NUMBERS = 1 << 23, 1 << 21
"""Numbers of an attention matrix up to which it is computed in one piece, and that one of a chunk may hold."""


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
        chunk: queries at a time; when None all up to `WHOLE_NUMBERS`, and then as many as `CHUNK_NUMBERS` allows.
    """
    queries, keys = q.shape[2], k.shape[2]
    if chunk is None:
        one_query = q.shape[0] * q.shape[1] * keys
        chunk = queries if queries * one_query <= WHOLE_NUMBERS else max(16, CHUNK_NUMBERS // one_query)
    if queries <= chunk:
        return headmix_attention(q, k, v, pre, post, mask=sight.dense(queries, keys, q.device))
    again = torch.is_grad_enabled()
    outs = []
    for start in range(0, queries, chunk):
        # Queries in the order of their first key's place on the axis of keys.
        rows = slice(start, min(start + chunk, queries))
        seen = _seen(sight, rows, queries, keys)
        inputs = (q, k, v, pre, post, sight, rows, seen, headmix_attention)
        outs.append(checkpoint(_chunk, *inputs, use_reentrant=False) if again else _chunk(*inputs))
    return torch.cat(outs, dim=2)


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
    queries, keys = q.shape[2], k.shape[2]
    chunk = max(1, CHUNK_NUMBERS // max(1, q.shape[0] * q.shape[1] * keys))
    again, all_keys = torch.is_grad_enabled(), slice(0, keys)
    outs = []
    for start in range(0, queries, chunk):
        rows = slice(start, min(start + chunk, queries))
        inputs = (q, k, v, pre, post, sight, rows, all_keys, reference_attention)
        outs.append(checkpoint(_chunk, *inputs, use_reentrant=False) if again else _chunk(*inputs))
    return torch.cat(outs, dim=2)


def all_finite(q: Tensor, k: Tensor, v: Tensor, pre: ComposeWeights | None, post: ComposeWeights | None) -> bool:
    """Whether the inputs hold neither NaN nor infinity; waits for their device."""
    held = [q, k, v]
    for stage in (pre, post):
        if stage is not None:
            held += [w for _, w in stage.dynamic()] + ([] if stage.static is None else [stage.static])
    with torch.no_grad():
        # A sum is one pass and no copy; where large numbers overflow in it, look again.
        return all(math.isfinite(x.sum().item()) or bool(x.isfinite().all()) for x in held)


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
    weights = mask_scores(mix_heads(scores, pre), mask).softmax(-1)
    return read_values(mix_heads(weights, post), v)


def _seen(sight: Sight, rows: slice, queries: int, keys: int) -> slice:
    """The keys that the causal rule leaves to some query of `rows`; all where a row may see none of them."""
    if not sight.causal or sight.allowed is not None or keys < queries:
        return slice(0, keys)
    past = keys - queries
    first = 0 if sight.window is None else max(0, past + rows.start + 1 - sight.window)
    return slice(first, past + rows.stop)


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
    return attend(
        q[:, :, rows], k[:, :, seen], v[:, :, seen], *stages, mask=_mask(sight, rows, seen, q.shape[2], k.shape[2], q)
    )


def _mask(sight: Sight, rows: slice, seen: slice, queries: int, keys: int, like: Tensor) -> Mask | None:
    mask = None if sight.allowed is None else sight.allowed[:, :, rows, seen]
    if not sight.causal:
        return mask
    slots = torch.arange(keys, device=like.device)
    ahead = slots[rows][:, None] + keys - queries - slots[seen]
    causal = ahead >= 0 if sight.window is None else (ahead >= 0) & (ahead < sight.window)
    return causal[None, None] if mask is None else causal & mask


def _cut(stage: ComposeWeights | None, rows: slice, seen: slice) -> ComposeWeights | None:
    if stage is None:
        return None
    cut: dict[str, Any] = {name: w[:, rows if name.startswith("w_q") else seen] for name, w in stage.dynamic()}
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
