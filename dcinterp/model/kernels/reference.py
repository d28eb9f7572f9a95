"""Composed attention written as the equation reads: slow, and what every other path is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from dcinterp.model.compose.branches import ComposeWeights, compose
from dcinterp.model.mask import mask_scores
from dcinterp.shapes import Attention, Mask

QueryHeads = Float[Tensor, "batch head query d_head"]
KeyHeads = Float[Tensor, "batch head key d_head"]
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
    return attention_pattern(q, k, before, after, mask) @ v


def attention_pattern(
    q: QueryHeads, k: KeyHeads, pre: Stage | None, post: Stage | None, mask: Mask | None = None, taps: Any = None
) -> Attention:
    """The matrix that multiplies the values: signed and with rows of any sum, once `post` composes.

    Args:
        q, k: [batch, head, query or key, d_head].
        pre, post: None for a stage that does not exist.
        mask: True where a query may look; None for everywhere.
        taps: an object with callables `hook_attn_scores` and `hook_pattern`, which see, and may replace, the composed,
            masked scores and the matrix itself.
    """
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = mask_scores(scores if pre is None else pre(scores), mask)
    weights = (scores if taps is None else taps.hook_attn_scores(scores)).softmax(-1)
    pattern = weights if post is None else post(weights)
    return pattern if taps is None else taps.hook_pattern(pattern)
