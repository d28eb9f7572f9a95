"""Composed attention the way the released training code goes about it, written for comparison: chunks of queries, and
inside a chunk one pass over the attention matrix per rank and branch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.mask import mask_scores

CHUNK = 128


def looped_attention(q: Tensor, k: Tensor, v: Tensor, pre: ComposeWeights, post: ComposeWeights) -> Tensor:
    """Causal composed attention, [batch, head, pos, d_head]; every branch present, one group."""
    outs = []
    for start in range(0, q.shape[2], CHUNK):
        rows = slice(start, min(start + CHUNK, q.shape[2]))
        seen = slice(0, rows.stop)
        scores = q[:, :, rows] @ k[:, :, seen].transpose(-1, -2) / math.sqrt(q.shape[-1])
        ahead = torch.arange(rows.start, rows.stop)[:, None] - torch.arange(rows.stop)
        scores = mask_scores(_compose(scores, pre, rows, seen), (ahead >= 0)[None, None])
        outs.append(_compose(scores.softmax(-1), post, rows, seen) @ v[:, :, seen])
    return torch.cat(outs, dim=2)


def _compose(a: Tensor, w: ComposeWeights, rows: slice, seen: slice) -> Tensor:
    assert w.w_q1 is not None and w.w_q2 is not None  # noqa: PT018
    assert w.w_k1 is not None and w.w_k2 is not None  # noqa: PT018
    assert w.w_qg is not None and w.w_kg is not None  # noqa: PT018
    out = a
    for r in range(w.w_q1.shape[2]):
        for w1, w2, own, axis in ((w.w_q1, w.w_q2, rows, 3), (w.w_k1, w.w_k2, seen, 2)):
            gather, share = (x[:, own, r].transpose(1, 2).unsqueeze(axis) for x in (w1, w2))
            out = out + (a * gather).sum(1, keepdim=True) * share
    out = out + a * w.w_qg[:, rows].transpose(1, 2).unsqueeze(3)
    return out + a * w.w_kg[:, seen].transpose(1, 2).unsqueeze(2)
