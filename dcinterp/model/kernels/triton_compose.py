# mypy: disable-error-code="no-untyped-def"
"""EXPERIMENTAL: what the Triton kernels of both directions share.

A kernel is given the seven weights of a stage, None for those that do not exist, and the four numbers of `STAGE`. (No
tuples: Triton does not compile numbers in that come out of one.) Blocks of scores lie as [head, query, key], with
`padded` heads, a power of two, of which those past the last are zero. Positions count through the whole batch wherever
they are called `at`.

Importing it needs triton.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

import torch
from torch import Tensor

from dcinterp.model.compose.branches import DYNAMIC_WEIGHTS, ComposeWeights
from dcinterp.model.mask import Sight
from dcinterp.support.errors import UserError

try:
    import triton
    import triton.language as tl
except ImportError as missing:
    raise UserError(
        'implementation="triton" needs the package triton: pip install triton; or choose "chunked", without it.'
    ) from missing

TILE, BLOCK = 16, 16
"""Queries of a tile and keys of a block; `tl.dot` wants 16 at least, and all heads' must fit a GPU's shared memory."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels run on Triton's interpreter: decided when they are defined, as Triton does."""
OPTIONS = {} if INTERPRETED else {"num_warps": 8, "num_stages": 1}
"""Of the compiler. One stage, because loading ahead needs shared memory for every block that is on its way."""

WEIGHTS = (*DYNAMIC_WEIGHTS, "static")
STAGE = ("rank_q", "rank_k", "groups", "skip")

LENGTHS = ["queries", "keys", "mask_b", "mask_t", "mask_s"]
"""Numbers that Triton does not compile in, where they are 1, say: what was compiled once serves every length."""


def held(stage: ComposeWeights | None) -> list[Tensor | None]:
    """The seven weights of a stage, None for those that do not exist."""
    return [None if stage is None else getattr(stage, name) for name in WEIGHTS]


def contiguous(tensors: list[Tensor | None]) -> list[Tensor | None]:
    """The same numbers, as the kernels read them."""
    return [None if x is None else x.detach().contiguous() for x in tensors]


def mask_bytes(mask: Tensor | None) -> tuple[Any, ...]:
    """A mask [batch or 1, 1, query, key] as bytes, without a copy, and its strides over batch, query and key."""
    if mask is None:
        return None, 0, 0, 0
    return mask.view(torch.int8), 0 if mask.shape[0] == 1 else mask.stride(0), mask.stride(2), mask.stride(3)


def constants(
    q: Tensor, k: Tensor, pre: ComposeWeights | None, post: ComposeWeights | None, sight: Sight
) -> dict[str, Any]:
    """What a kernel is compiled for, by the names of its arguments."""
    heads, queries, width = q.shape[1:]
    shared, keys = k.shape[1:3]
    window = 0 if sight.window is None or sight.window >= keys else sight.window
    return {
        **_numbers("pre", pre),
        **_numbers("post", post),
        **dict(heads=heads, shared=shared, padded=triton.next_power_of_2(heads)),
        **dict(width=width, wide=max(16, triton.next_power_of_2(width))),
        **dict(causal=sight.causal, window=window, tile=TILE, block=BLOCK),
        # Blocks that the rule hides may be left out unless some row sees nothing: that one attends evenly to all.
        "cut": sight.causal and sight.allowed is None and keys >= queries,
    }


def _numbers(name: str, stage: ComposeWeights | None) -> dict[str, int]:
    ranks = [0 if stage is None or w is None else w.shape[2] for w in (stage and stage.w_q1, stage and stage.w_k1)]
    groups, skip = (1, 1) if stage is None else (stage.groups, int(stage.skip))
    return {f"{name}_{of}": x for of, x in zip(STAGE, (*ranks, groups, skip), strict=True)}


def device_function(function):
    """`triton.jit` of a function that kernels call.

    Interpreted kernels call it as it is, for Triton would set up its interpreter anew at every call: some milliseconds.
    """
    # Triton reads the source, and must not get the wrapper of a type checker of the tests.
    function = inspect.unwrap(function)
    return function if INTERPRETED else triton.jit(function)


def kernel(function):
    """`triton.jit` of a function that is launched."""
    return triton.jit(inspect.unwrap(function), do_not_specialize=LENGTHS)


@device_function
def load_heads(x, b, at, length, first, share: tl.constexpr, heads: tl.constexpr, padded: tl.constexpr,
               width: tl.constexpr, part: tl.constexpr):  # fmt: skip
    """x[b, :, at, first : first + part] as [head, position, part] in float32, zero past the ends.

    `share` consecutive heads read the same.
    """
    h, d = tl.arange(0, padded)[:, None, None], first + tl.arange(0, part)[None, None, :]
    place = ((b * (heads // share) + h // share) * length + at[None, :, None]) * width + d
    ok = (h < heads) & (at < length)[None, :, None] & (d < width)
    return tl.load(x + place, mask=ok, other=0.0).to(tl.float32)


@device_function
def products(x, y, b, t, s, queries, keys, share: tl.constexpr, heads: tl.constexpr, padded: tl.constexpr,
             width: tl.constexpr, tile: tl.constexpr, block: tl.constexpr, part: tl.constexpr = 16):  # fmt: skip
    """x y^T of every head, [head, query, key], a part of d_head at a time: a GPU's shared memory must hold both."""
    total = tl.zeros([padded, tile, block], tl.float32)
    for first in range(0, width, part):
        rows = load_heads(x, b, t, queries, first, 1, heads, padded, width, part)
        columns = load_heads(y, b, s, keys, first, share, heads, padded, width, part)
        total += tl.dot(rows, tl.permute(columns, (0, 2, 1)), input_precision="ieee")
    return total


@device_function
def store_heads(out, x, b, at, length, heads: tl.constexpr, padded: tl.constexpr, width: tl.constexpr,
                wide: tl.constexpr):  # fmt: skip
    """The other way round, all of d_head, for heads that are not shared."""
    h, d = tl.arange(0, padded)[:, None, None], tl.arange(0, wide)[None, None, :]
    place = ((b * heads + h) * length + at[None, :, None]) * width + d
    ok = (h < heads) & (at < length)[None, :, None] & (d < width)
    tl.store(out + place, x.to(out.dtype.element_ty), mask=ok)


@device_function
def row_places(b, t, queries, heads: tl.constexpr, padded: tl.constexpr):
    """Where [batch, head, query] has the numbers of these queries, as [head, query], and which of them exist."""
    h = tl.arange(0, padded)
    return (b * heads + h[:, None]) * queries + t[None, :], (h < heads)[:, None] & (t < queries)[None, :]


@device_function
def load_weight(w, at, stride, offset, h, ok, query: tl.constexpr):
    """w[at, offset + h] as [head, query, 1] or [head, 1, key], zero where not `ok` [head, position]."""
    x = tl.load(w + at[None, :] * stride + offset + h[:, None], mask=ok, other=0.0).to(tl.float32)
    if query:
        return x[:, :, None]
    else:
        return x[:, None, :]


@device_function
def _side(a, w1, w2, wg, at, at_ok, heads: tl.constexpr, padded: tl.constexpr, rank: tl.constexpr,
          groups: tl.constexpr, query: tl.constexpr):  # fmt: skip
    """The low-rank branch and the gate of one side: of the queries, or of the keys."""
    h = tl.arange(0, padded)
    total = a * 0.0
    if rank > 0:
        for r in tl.static_range(rank):
            for g in tl.static_range(groups):
                ok = ((h < heads) & (h // (heads // groups) == g))[:, None] & at_ok[None, :]
                gathered = tl.sum(a * load_weight(w1, at, rank * heads, r * heads, h, ok, query), 0)
                total += load_weight(w2, at, rank * heads, r * heads, h, ok, query) * gathered[None, :, :]
    if wg is not None:
        total += a * load_weight(wg, at, heads, 0, h, (h < heads)[:, None] & at_ok[None, :], query)
    return total


@device_function
def compose(a, w_q1, w_q2, w_qg, w_k1, w_k2, w_kg, static, b, t, s, queries, keys, rank_q: tl.constexpr,
            rank_k: tl.constexpr, groups: tl.constexpr, skip: tl.constexpr, heads: tl.constexpr,
            padded: tl.constexpr, back: tl.constexpr):  # fmt: skip
    """Compose(A) for a [head, query, key], or with `back` the transposed map: A's gradient from that of Compose(A)."""
    h = tl.arange(0, padded)
    total = a * skip
    if static is not None:
        for f in range(heads):
            row = tl.sum(tl.where((h == f)[:, None, None], a, 0.0), 0)
            place = h * heads + f if back else f * heads + h
            to = tl.load(static + place, mask=h < heads, other=0.0).to(tl.float32)
            total += to[:, None, None] * row[None, :, :]
    at_t, at_s = b * queries + t, b * keys + s
    if back:
        # What gathered shares, and what shared gathers.
        total += _side(a, w_q2, w_q1, w_qg, at_t, t < queries, heads, padded, rank_q, groups, True)
        total += _side(a, w_k2, w_k1, w_kg, at_s, s < keys, heads, padded, rank_k, groups, False)
    else:
        total += _side(a, w_q1, w_q2, w_qg, at_t, t < queries, heads, padded, rank_q, groups, True)
        total += _side(a, w_k1, w_k2, w_kg, at_s, s < keys, heads, padded, rank_k, groups, False)
    return total


@device_function
def pairs_seen(mask, mask_b, mask_t, mask_s, b, t, s, queries, keys, causal: tl.constexpr, window: tl.constexpr):
    """Where a query may look at a key: [query, key]."""
    ahead = t[:, None] + (keys - queries) - s[None, :]
    seen = (t < queries)[:, None] & (s < keys)[None, :]
    if causal:
        seen = seen & (ahead >= 0)
        if window > 0:
            seen = seen & (ahead < window)
    if mask is not None:
        place = b * mask_b + t[:, None].to(tl.int64) * mask_t + s[None, :].to(tl.int64) * mask_s
        inside = (t < queries)[:, None] & (s < keys)[None, :]
        seen = seen & (tl.load(mask + place, mask=inside, other=0) != 0)
    return seen


@device_function
def hide(a, seen, s, keys):
    """The lowest finite number where the query may not look, as `mask_scores`, and -inf past the last key."""
    a = tl.where(seen[None, :, :], a, -3.4028234663852886e38)
    return tl.where((s < keys)[None, None, :], a, float("-inf"))


@device_function
def softmax_again(a, row, seen, s, keys):
    """The softmax's weights of composed scores [head, query, key], from the logarithms of their rows' denominators."""
    a = tl.exp(hide(a, seen, s, keys) - row[:, :, None])
    # A row that sees nothing attends evenly. Its logarithm is the lowest finite number, in which the count was lost.
    return tl.where((row == -3.4028234663852886e38)[:, :, None], a / keys, a)


@device_function
def keys_of_tile(tile_start, queries, keys, cut: tl.constexpr, window: tl.constexpr, tile: tl.constexpr,
                 block: tl.constexpr):  # fmt: skip
    """The first and the last of the keys that a tile of queries reads, the last not included."""
    low, high = tile_start * 0, keys
    if cut:
        high = tl.minimum(keys, keys - queries + tile_start + tile)
        if window > 0:
            low = tl.maximum(0, keys - queries + tile_start + 1 - window) // block * block
    return low, high
