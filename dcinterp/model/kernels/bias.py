"""What biases over heads add to composed attention: apart from the kernels, which are maps over heads and nothing else.

    sum over the keys s that t sees of (P[h,t,s] + b[h]) v[h,s] = z[h,t] + b[h] * (sum over these s of v[h,s])

A bias before the softmax adds the same to all keys of a query, and so changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels.reference import KeyHeads, QueryHeads
from dcinterp.model.mask import Sight


def add_biases(
    z: QueryHeads, v: KeyHeads, pre: ComposeWeights | None, post: ComposeWeights | None, sight: Sight
) -> QueryHeads:
    """`z`, and what the biases of the two stages add to it; `z` itself where there are none.

    Cost: one pass over the values where the rule alone says who sees whom, else a product with the mask for all heads.
    """
    if pre is not None and pre.bias is not None:
        z = z + 0 * pre.bias.sum()  # its gradient is zero; without any, training on several devices would wait for one
    if post is not None and post.bias is not None:
        seen = values_seen(v, sight, z.shape[2])
        # Heads that share values share the sum over them.
        z = (z + post.bias[:, None, None] * seen.repeat_interleave(z.shape[1] // v.shape[1], dim=1)).to(z)
    return z


def values_seen(v: KeyHeads, sight: Sight, queries: int) -> Tensor:
    """The sum of the values that each query sees: [batch, head, query (or 1, if all see the same), d_head].

    In at least float32, as a sum over thousands of keys is no number of float16.
    """
    keys = v.shape[2]
    wide = v.to(torch.promote_types(v.dtype, torch.float32))
    if sight.allowed is not None:
        mask = sight.dense(queries, keys, v.device)
        assert mask is not None
        return mask.to(wide) @ wide
    if not sight.causal:
        return wide.sum(2, keepdim=True)
    if sight.window is not None:
        # Nobody sees the keys before the first query's window.
        wide = wide[:, :, max(0, keys - queries - sight.window + 1) :]
        keys = wide.shape[2]
    # Of a window it is the difference of two sums over all of these, which takes digits. Metal has no float64.
    digits = torch.float64 if sight.window is not None and v.device.type != "mps" else wide.dtype
    sums = wide.cumsum(2, dtype=digits)
    total = sums[:, :, keys - queries :]
    if sight.window is not None:
        # A query in slot t does not see the slots up to t - window any more.
        past = torch.nn.functional.pad(sums, (0, 0, min(sight.window, keys), 0))
        total = total - past[:, :, keys - queries : keys]
    return total.to(wide)
