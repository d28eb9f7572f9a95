"""Composed attention written as the equation reads: slow, and what every other path is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from dcinterp.model.compose.branches import ComposeWeights, compose
from dcinterp.model.mask import mask_scores
from dcinterp.shapes import Attention, Mask

QueryHeads = Float[Tensor, "batch head query d_head"]
KeyHeads = Float[Tensor, "batch kv_head key d_head"]
"""Keys or values; each of their heads serves as many consecutive query heads."""
Stage = Callable[[Attention], Attention]
"""Compose of one stage, with its weights in it."""


def reference_attention(
    q: QueryHeads,
    k: KeyHeads,
    v: KeyHeads,
    pre: ComposeWeights | None,
    post: ComposeWeights | None,
    mask: Mask | None = None,
) -> QueryHeads:
    """Compose_post(softmax(mask(Compose_pre(q k^T / sqrt d)))) v, with None for a stage that does not exist."""
    before, after = (None if weights is None else partial(compose, w=weights.within(mask)) for weights in (pre, post))
    return read_values(attention_pattern(q, k, before, after, mask), v)


def attention_pattern(
    q: QueryHeads,
    k: KeyHeads,
    pre: Stage | None,
    post: Stage | None,
    mask: Bool[Tensor, "#batch 1 row key"] | None = None,
    taps: Any = None,
) -> Float[Tensor, "batch head row key"]:
    """The matrix that multiplies the values: signed and with rows of any sum, once `post` composes.

    Args:
        q, k: [batch, head or kv_head, query or key, d_head].
        pre, post: None for a stage that does not exist.
        mask: True where a query may look; None for everywhere. It has the rows that `pre` gives: all queries, or the
            last ones, where scores are convolved over queries and earlier ones are only read.
        taps: an object with callables `hook_attn_scores` and `hook_pattern`, which see, and may replace, the composed,
            masked scores and the matrix itself.
    """
    scores = dot_keys(q, k) / math.sqrt(q.shape[-1])
    scores = mask_scores(scores if pre is None else pre(scores), mask)
    weights = (scores if taps is None else taps.hook_attn_scores(scores)).softmax(-1)
    pattern = weights if post is None else post(weights)
    return pattern if taps is None else taps.hook_pattern(pattern)


def dot_keys(q: QueryHeads, k: KeyHeads) -> Attention:
    """q k^T of every query head with the keys that it shares, which are not repeated in memory."""
    return _by_shared_head(q, k.transpose(-1, -2))


def read_values(pattern: Attention, v: KeyHeads) -> QueryHeads:
    """What every head reads: its matrix times the values that it shares, which are not repeated in memory."""
    return _by_shared_head(pattern, v)


def _by_shared_head(x: Tensor, shared: Tensor) -> Tensor:
    """[batch, head, row, n] @ [batch, kv_head, n, column]: rows of heads that share a matrix meet it together."""
    batch, heads, rows, width = x.shape
    if heads == shared.shape[1]:
        return x @ shared
    joined = x.reshape(batch, shared.shape[1], heads // shared.shape[1] * rows, width)
    return (joined @ shared).view(batch, heads, rows, shared.shape[-1])
