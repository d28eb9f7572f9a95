"""The portable fast path: composing as small matrix products over heads, a chunk of queries at a time.

For one query the skip, the static map, the query-side projection and gate are a single H x H map of the heads' rows,
and for one key the key side is another (`branches.head_maps`). Two batched matrix products per stage replace the
twelve passes over A of the branch-by-branch definition. Terms that read other pairs or the layer before are added as
the definition has them.

Long inputs go in chunks of queries against the keys that they see; under autograd a chunk keeps its inputs only and
computes the rest again in the backward pass, so that memory grows with the length and not with its square. A chunk
starts some queries early where a convolution reads them, and drops what comes out of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dcinterp.model.compose.branches import ComposeWeights, earlier, head_maps, neighbours
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
    return _in_chunks(q, k, v, pre, post, sight, chunk, headmix_attention)


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
    outs = []
    for start in range(0, queries, chunk):
        # Queries in the order of their first key's place on the axis of keys.
        rows = slice(max(0, start - early), min(start + chunk, queries))
        seen = slice(0, keys) if all_keys else _seen(sight, rows, queries, keys)
        inputs = (q, k, v, pre, post, sight, rows, seen, attend)
        out = checkpoint(_chunk, *inputs, use_reentrant=False) if again else _chunk(*inputs)
        outs.append(out[:, :, start - rows.start :])
    return torch.cat(outs, dim=2)


def all_finite(q: Tensor, k: Tensor, v: Tensor, pre: ComposeWeights | None, post: ComposeWeights | None) -> bool:
    """Whether the inputs hold neither NaN nor infinity; waits for their device."""
    held = [q, k, v]
    for stage in (pre, post):
        if stage is not None:
            others = (stage.static, stage.conv, stage.previous, stage.before)
            held += [w for _, w in stage.dynamic()] + [w for w in others if w is not None]
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
