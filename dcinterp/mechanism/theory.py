r"""Theorems 1 and 2 of the paper, as code: a static composition of heads is attention with larger projections.

Theorem 1 (scores). Composing the scores A_h = X_q W_Q,h (X_k W_K,h)^T with a static map W is plain attention whose
query and key projections are H times wider:

    sum_h W[h,h'] A_h = X_q Wx_Q,h' (X_k Wx_K)^T
    Wx_Q,h' = [W[0,h'] W_Q,0 ... W[H-1,h'] W_Q,H-1],   Wx_K = [W_K,0 ... W_K,H-1]

Theorem 2 (weights). Composing the weights P_h with W is plain attention whose value and output projections are wider:

    sum_h' (sum_h W[h,h'] P_h) X W_V,h' W_O,h' = sum_h P_h X Wx_V,h Wx_O
    Wx_V,h = [W[h,0] W_V,0 ... W[h,H-1] W_V,H-1],   Wx_O = [W_O,0; ... W_O,H-1]

So composition lets d-wide heads use maps of rank up to H d, which is what they gain. The theorems speak of static maps;
the dynamic composition of one pair of positions is the same with the map of that pair (`composition_map`).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.shapes import HeadMap

Projection = Float[Tensor, "head d_model d_head"]
Output = Float[Tensor, "head d_head d_model"]
Wide = Float[Tensor, "wide_head d_model all_d_heads"]
WideOutput = Float[Tensor, "all_d_heads d_model"]


def expand_qk(w_q: Projection, w_k: Projection, head_map: HeadMap) -> tuple[Wide, Float[Tensor, "d_model all_d_heads"]]:
    """Projections whose plain scores are the composed scores of `w_q` and `w_k` (Theorem 1).

    Returns:
        Queries for each head that uses the scores, [head_to, d_model, head_from * d_head], and the one key projection
        that all of them share.
    """
    scaled = torch.einsum("ft,fmd->tmfd", head_map, w_q)
    return scaled.flatten(2), w_k.transpose(0, 1).flatten(1)


def expand_ov(w_v: Projection, w_o: Output, head_map: HeadMap) -> tuple[Wide, WideOutput]:
    """Projections whose plain output is the output of composed weights with `w_v` and `w_o` (Theorem 2).

    Returns:
        Values for each head that computed the weights, [head_from, d_model, head_to * d_head], and the one output
        projection that all of them share.
    """
    scaled = torch.einsum("ft,tmd->fmtd", head_map, w_v)
    return scaled.flatten(2), w_o.flatten(0, 1)
