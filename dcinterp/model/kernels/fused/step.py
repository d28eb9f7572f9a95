"""A few tokens of a layer on top of its cache, in one call: dynamic weights, rotation, what is cached, and attention.

Decoding a token of a small model costs as much as the number of its operations, and not what they compute. This is what
`ComposedAttention.attend` does, for the case that nobody looks and no gradient is wanted.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from dcinterp.model.kernels.arguments import FURTHEST
from dcinterp.model.kernels.fused.arguments import STEP
from dcinterp.model.kernels.fused.build import kernel_function, lanes, library
from dcinterp.model.kernels.fused.op import DECODING, tile
from dcinterp.model.kernels.fused.plain import StageMaps, fits, nobody_looks
from dcinterp.model.mask import Sight

TOKENS = 32
"""So many tokens, of all texts together, go this way; for more of them, large matrix products do better."""

NO_STAGE = (0,) * 11


class Stages:
    """The stages of a layer, and what follows from them for the kernel."""

    def __init__(self, pre: StageMaps | None, post: StageMaps | None) -> None:
        self.maps = pre, post
        present = [stage for stage in self.maps if stage is not None]
        self.heads = {stage.heads for stage in present}
        self.statics = [stage.static for stage in present]
        self.channels = sum(stage.channels for stage in present)
        self.numbers = (*(NO_STAGE if pre is None else pre.numbers()), *(NO_STAGE if post is None else post.numbers()))
        # What the packed weights of the keys look like.
        self.kind = tuple(
            None
            if stage is None or stage.key is None or stage.key.empty
            else (stage.heads, stage.rank, stage.key.down is None, stage.key.gate is None)
            for stage in self.maps
        )

    def fit(self, x: Tensor, heads: int) -> bool:
        """Whether they are those of attention with so many heads."""
        return self.heads <= {heads} and all(fits(static, (heads, heads), x) for static in self.statics)


class Packed:
    """Key-side weights of a cache in the order in which the kernel reads them, so that a token packs its own alone.

    `keys` of them are there, and there is room for `places`, in blocks of keys.
    """

    def __init__(self, stages: Stages, keys: Tensor, places: int) -> None:
        self.kind, self.dtype, self.keys = stages.kind, keys.dtype, 0
        heads = next(iter(stages.heads))
        block = tile(heads, 1, lanes(keys.dtype))[1]
        self.blocks = -(-places // block)
        self.places = self.blocks * block
        self.stages = [
            None if kind is None else keys.new_zeros(len(keys), self.blocks, (2 * kind[1] + 1) * heads, block)
            for kind in stages.kind
        ]

    def serves(self, stages: Stages, keys: Tensor) -> bool:
        """Whether what it holds is what these stages made, with room for all of `keys`."""
        return keys.shape[2] <= self.places and keys.dtype is self.dtype and stages.kind == self.kind

    def numbers(self) -> tuple[int, ...]:
        """As the kernel takes them."""
        return *[0 if each is None else each.data_ptr() for each in self.stages], self.blocks, self.keys


def takes(x: Tensor, q: Tensor, k: Tensor, v: Tensor, rotation: Any) -> bool:
    """Whether `step` can be called with these.

    Args:
        x: [batch, query, d_model], the normed input that the dynamic weights are made from.
        q, k, v: [batch, head or kv_head, query, d_head], as projected.
        rotation: cos and sin [batch or 1, 1, query, rotated], or None.
    """
    if torch.is_grad_enabled() or not nobody_looks(x) or library() is None:
        return False
    batch, heads, queries, width = q.shape
    dtype = x.dtype
    if not 0 < queries <= DECODING or not 0 < batch * queries <= TOKENS or width % lanes(dtype):
        return False
    if x.shape[:2] != (batch, queries) or not x.is_contiguous():
        return False
    shared = k.shape[1]
    if shared < 1 or heads % shared or k.shape != (batch, shared, queries, width) or v.shape != k.shape:
        return False
    if not all(
        type(each) is Tensor and each.dtype is dtype and each.is_cpu and each.stride(3) == 1 for each in (q, k, v)
    ):
        return False
    if rotation is not None:
        for each in rotation:
            if each.dtype is not dtype or not each.is_contiguous() or each.shape[3] > width or each.shape[3] % 2:
                return False
            if each.shape[0] not in (1, batch) or each.shape[2] != queries:
                return False
    return True


def mask_fits(sight: Sight, q: Tensor, keys: int) -> bool:
    """Whether the mask and the window are what the kernel reads, for this many keys."""
    mask, (batch, _, queries, _) = sight.allowed, q.shape
    if not (sight.window is None or (sight.causal and 0 < sight.window < FURTHEST)):
        return False
    if sight.causal and queries > keys:
        return False
    return mask is None or (
        type(mask) is Tensor
        and mask.dtype is torch.bool
        and mask.is_cpu
        and mask.dim() == 4
        and all(n in (1, m) for n, m in zip(mask.shape, (batch, 1, queries, keys), strict=True))
    )


def step(
    x: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotation: Any,
    sight: Sight,
    stages: Stages,
    keys: Tensor,
    values: Tensor,
    packed: Packed | None = None,
) -> Tensor | None:
    """What every head reads, [batch, head, query, d_head]; None where something is NaN or infinite.

    Writes the new keys, values and key-side weights to the last places of `keys` and `values`, in any case.

    Args:
        x, q, k, v, rotation, sight: as `takes` takes them.
        stages: `Stages.fit` must hold.
        keys, values: all that the cache holds, [batch, kv_head, key, d_head] and with further channels for the key-side
            weights (`cache.pack_key_weights` says how they lie), with places for the new ones.
        packed: those weights of the keys so far, which are packed anew where it is None; it gets the new ones.
    """
    batch, heads, queries, width = q.shape
    length = keys.shape[2]
    mask = sight.allowed
    if mask is not None:
        mask = mask.expand(-1, 1, queries, length).contiguous()
    out = x.new_empty(batch, queries, heads, width)
    strange = ctypes.c_long(0)
    numbers = [
        batch, heads, keys.shape[1], queries, length, width, int(sight.causal), sight.window or 0,
        0 if mask is None or mask.shape[0] == 1 else queries * length, torch.get_num_threads(),
        tile(heads, queries, lanes(x.dtype))[1], 0 if mask is None else mask.data_ptr(), ctypes.addressof(strange),
        x.shape[2], x.data_ptr(),
    ]  # fmt: skip
    for each in (q, k, v):
        numbers += (each.data_ptr(), *each.stride()[:3])
    if rotation is None:
        numbers += (0, 0, 0, 0)
    else:
        cos, sin = rotation
        turned = cos.shape[3]
        numbers += (cos.data_ptr(), sin.data_ptr(), turned, 0 if cos.shape[0] == 1 else queries * turned)
    for each in (keys, values):
        numbers += (each.data_ptr(), *each.stride()[:3])
    numbers.append(out.data_ptr())
    numbers += (0, 0, 0, 0) if packed is None else packed.numbers()
    numbers += stages.numbers
    kernel_function("step", x.dtype)(STEP.pack(*numbers))
    if packed is not None:
        packed.keys = 0 if strange.value else length  # what is not finite is looked for again
    return None if strange.value else out.transpose(1, 2)
