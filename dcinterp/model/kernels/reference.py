"""Composed attention written as the equation reads: slow, and what every other path is compared with."""

from __future__ import annotations

import math
from typing import Any

from dcinterp.model.compose.branches import ComposeWeights, compose
from dcinterp.model.mask import mask_scores
from dcinterp.shapes import Attention, Mask, PerHead


def reference_attention(
    q: PerHead,
    k: PerHead,
    v: PerHead,
    pre: ComposeWeights | None,
    post: ComposeWeights | None,
    mask: Mask | None = None,
) -> PerHead:
    """Compose_post(softmax(mask(Compose_pre(q k^T / sqrt d)))) v, with None for a stage that does not exist."""
    return apply_attention(attention_pattern(q, k, pre, post, mask), v)


def attention_pattern(
    q: PerHead, k: PerHead, pre: ComposeWeights | None, post: ComposeWeights | None, mask: Mask | None = None
) -> Attention:
    """The matrix that multiplies the values: signed and with rows of any sum, once `post` composes."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = _stage(scores, pre)
    weights = mask_scores(scores, mask).softmax(-1)
    return _stage(weights, post)


def apply_attention(pattern: Attention, v: PerHead) -> PerHead:
    """What each head reads: its pattern times its values."""
    return pattern @ v


def _stage(a: Attention, weights: ComposeWeights | None, taps: Any = None) -> Attention:
    return a if weights is None else compose(a, weights, taps)
