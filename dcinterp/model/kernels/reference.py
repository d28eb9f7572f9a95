"""Composed attention written as the equation reads: slow, and what every other path is compared with."""

from __future__ import annotations

import math
from typing import Any

from jaxtyping import Float
from torch import Tensor

from dcinterp.model.compose.branches import ComposeWeights, compose
from dcinterp.model.mask import mask_scores
from dcinterp.shapes import Attention, Mask

QueryHeads = Float[Tensor, "batch head query d_head"]
KeyHeads = Float[Tensor, "batch head key d_head"]


def reference_attention(
    q: QueryHeads,
    k: KeyHeads,
    v: KeyHeads,
    pre: ComposeWeights | None,
    post: ComposeWeights | None,
    mask: Mask | None = None,
) -> QueryHeads:
    """Compose_post(softmax(mask(Compose_pre(q k^T / sqrt d)))) v, with None for a stage that does not exist."""
    return apply_attention(attention_pattern(q, k, pre, post, mask), v)


def attention_pattern(
    q: QueryHeads, k: KeyHeads, pre: ComposeWeights | None, post: ComposeWeights | None, mask: Mask | None = None
) -> Attention:
    """The matrix that multiplies the values: signed and with rows of any sum, once `post` composes."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = _stage(scores, pre)
    weights = mask_scores(scores, mask).softmax(-1)
    return _stage(weights, post)


def apply_attention(pattern: Attention, v: KeyHeads) -> QueryHeads:
    """What each head reads: its pattern times its values."""
    return pattern @ v


def _stage(a: Attention, weights: ComposeWeights | None, taps: Any = None) -> Attention:
    return a if weights is None else compose(a, weights, taps)
