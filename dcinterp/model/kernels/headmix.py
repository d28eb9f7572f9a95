"""The portable fast path: composing as small matrix products over heads.

For one query the skip, the static map, the query-side projection and gate are a single H x H map of the heads' rows,
and for one key the key side is another (`branches.head_maps`). Two batched matrix products per stage replace the
twelve passes over A of the branch-by-branch definition.
"""

from __future__ import annotations

import math

from dcinterp.model.compose.branches import ComposeWeights, head_maps
from dcinterp.model.kernels.reference import KeyHeads, QueryHeads
from dcinterp.model.mask import mask_scores
from dcinterp.shapes import Attention, Mask


def headmix_attention(
    q: QueryHeads,
    k: KeyHeads,
    v: KeyHeads,
    pre: ComposeWeights | None = None,
    post: ComposeWeights | None = None,
    *,
    mask: Mask | None = None,
) -> QueryHeads:
    """What `reference_attention` computes, to rounding.

    Args:
        q, k, v: [batch, head, query or key, d_head].
        pre, post: weights of the two stages; None for a stage that does not exist.
        mask: True where a query may look; None for everywhere.
    """
    scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-1, -2)
    weights = mask_scores(mix_heads(scores, pre), mask).softmax(-1)
    return mix_heads(weights, post) @ v


def mix_heads(a: Attention, w: ComposeWeights | None) -> Attention:
    """Compose(A) through the two maps over heads."""
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
