"""The decoding cache: keys, values and the key side of the composition, bounded by the window in local layers.

Global layers keep room for what is to come, so that a token costs no copy of those before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from dcinterp.model.compose.branch_table import BRANCHES
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.kernels.gradients import transformed
from dcinterp.model.kernels.reference import KeyHeads, QueryHeads
from dcinterp.shapes import SharedHeads
from dcinterp.support.errors import UserError

KEY_WEIGHTS = tuple(weight for branch in BRANCHES.values() if branch.side == "key" for weight in branch.weights)
"""Dynamic weights that belong to the keys, and stay with them while decoding."""


class GrowingLayer(DynamicLayer):
    """The cache of a global layer: it keeps room at the end, where transformers copies all it holds at every token.

    Nothing that it ever gave out changes: a place is written once, by the one who holds all that is before it. A copy
    of the cache, or a cropped, reordered or selected one, moves to a room of its own at its next token.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rooms: dict[str, tuple[Tensor, Tensor]] = {}  # by name: a room, and the view of it that was given out last
        # What was made of these values. As with the rooms, of shallow copies one goes on with it.
        self.made: dict[str, tuple[Any, Tensor, int]] = {}

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        # What writes in place is nothing for autograd, nor for what follows tensors around.
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed():
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys = self.keys = self._extended("keys", self.keys, key_states)
        values = self.values = self._extended("values", self.values, value_states)
        return keys, values

    def open(self, places: int) -> tuple[Tensor, Tensor]:
        """All keys and values, and this many places at the end of each, which the caller writes before anybody reads.

        It must hold some already, and `update` says when places may be written at all.
        """
        assert self.keys is not None
        assert self.values is not None
        keys = self.keys = self._opened("keys", self.keys, self.keys, places)
        values = self.values = self._opened("values", self.values, self.values, places)
        return keys, values

    def keep(self, made: Any) -> None:
        """Remember what was made of all values that are held now."""
        assert self.values is not None
        self.made["values"] = made, self.values, self.values._version

    def kept(self) -> Any:
        """What was made of the values that are held, if they are still the same; else None."""
        made, of, version = self.made.get("values", (None, None, 0))
        return made if of is not None and of is self.values and of._version == version else None

    def places(self) -> int:
        """For how many keys there is room now."""
        return self.rooms["values"][0].shape[2]

    def _extended(self, name: str, held: Tensor | None, new: Tensor) -> Tensor:
        given = self._opened(name, held, new, new.shape[2])
        given[:, :, given.shape[2] - new.shape[2] :] = new
        return given

    def _opened(self, name: str, held: Tensor | None, like: Tensor, places: int) -> Tensor:
        before = held.shape[2] if held is not None and held.dim() == 4 else 0
        after = before + places
        room, given = self.rooms.get(name, (None, None))
        if room is None or given is not held or room.shape[2] < after or not _writable(room, like):
            room = like.new_empty(*like.shape[:2], after + after // 4 + 64, like.shape[3])
            if before and held is not None:
                room[:, :, :before] = held
        given = room[:, :, :after]
        self.rooms[name] = room, given
        return given


def _writable(room: Tensor, new: Tensor) -> bool:
    """Whether `new` may be written into a room that was made earlier, perhaps in inference mode."""
    return room.dtype == new.dtype and (not room.is_inference() or torch.is_inference_mode_enabled())


class LocalLayer(DynamicSlidingWindowLayer):
    """The cache of a local layer: it keeps window - 1 keys, also when that is none."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        if self.sliding_window == 1 and not self.record_past:  # transformers keeps [-0:], which is everything
            self.keys, self.values = keys[:, :, :0], values[:, :, :0]
        return keys, values


def new_cache(config: DCFormerConfig) -> DynamicCache:
    """An empty cache whose local layers keep no more keys than their window needs."""
    cache = DynamicCache()
    cache.layers = _layers(config)
    return cache


def fit_cache(cache: Cache, config: DCFormerConfig) -> Cache:
    """`cache`, with layers that know our windows if it is still empty (`generate` builds a generic one).

    Raises:
        UserError: it is of a kind that gives back other keys than those of the tokens so far.
    """
    if not isinstance(cache, DynamicCache):
        raise UserError(
            f"This decoder does not read a {type(cache).__name__}; give a DynamicCache as past_key_values, or "
            "leave it out."
        )
    if cache.get_seq_length() != 0:
        return cache
    windows = config.windows
    fitted = len(cache.layers) == len(windows) and all(
        isinstance(held, GrowingLayer if window is None else LocalLayer)
        for held, window in zip(cache.layers, windows, strict=True)
    )
    if not fitted:
        cache.layers = _layers(config)
    return cache


def _layers(config: DCFormerConfig) -> list[Any]:
    return [GrowingLayer() if w is None else LocalLayer(sliding_window=w) for w in config.windows]


def global_layer(cache: Cache, layer: int, k: SharedHeads, width: int) -> GrowingLayer | None:
    """The cache of a global layer that may be written in place, where it holds keys like `k`, and values of `width`."""
    if type(cache) is not DynamicCache or cache.offloading or "update" in vars(cache) or layer >= len(cache.layers):
        return None
    held = cache.layers[layer]
    if type(held) is not GrowingLayer or not held.is_initialized or "update" in vars(held):
        return None
    keys, values = held.keys, held.values
    if keys.dim() != 4 or type(keys) is not Tensor or type(values) is not Tensor:
        return None
    batch, heads, _, d_head = k.shape
    like = (batch, heads, keys.shape[2])
    if keys.shape != (*like, d_head) or values.shape != (*like, width):
        return None
    same = keys.dtype is k.dtype and values.dtype is k.dtype and keys.is_cpu and values.is_cpu
    return held if same and keys.stride(3) == 1 and values.stride(3) == 1 else None


def update(
    cache: Cache,
    layer: int,
    k: SharedHeads,
    v: Float[Tensor, "batch kv_head pos d_value"],
    stages: list[ComposeWeights],
) -> tuple[KeyHeads, Float[Tensor, "batch kv_head key d_value"], list[ComposeWeights]]:
    """Add the new positions to the cache and return everything it holds for this layer; `v` may have more channels.

    The key-side weights travel as extra channels of the values, so that reordering beams, selecting a batch and
    cropping, which transformers does to keys and values, hold for them too. Where several heads share values, the
    weights of them all travel with these.
    """
    channels = pack_key_weights(stages, v.shape[1])
    k, packed = cache.update(k, v if channels is None else torch.cat([v, channels], dim=-1), layer)
    if channels is None:
        return k, packed, stages
    v, cached = _split(packed, v.shape[-1])
    return k, v, unpack_key_weights(cached, stages)


def with_queries(v: SharedHeads, q: QueryHeads) -> Float[Tensor, "batch kv_head pos d_value"]:
    """Values with queries as further channels, for scores that are convolved over queries; see `split_queries`."""
    # Of the heads that share values, the queries of one after those of another.
    return torch.cat([v, q.unflatten(1, (v.shape[1], -1)).transpose(2, 3).flatten(3)], dim=-1)


def split_queries(
    held: Float[Tensor, "batch kv_head key d_value"], q: QueryHeads
) -> tuple[KeyHeads, Float[Tensor, "batch head key d_head"]]:
    """The values and the queries of all positions that the cache holds; `q` are the new ones, for their axes."""
    shared = q.shape[1] // held.shape[1]
    v, queries = _split(held, held.shape[-1] - shared * q.shape[-1])
    return v, queries.unflatten(3, (shared, -1)).transpose(2, 3).flatten(1, 2)


def _split(packed: Tensor, width: int) -> tuple[Tensor, Tensor]:
    return packed[..., :width], packed[..., width:]


def pack_key_weights(stages: list[ComposeWeights], kv_heads: int) -> Tensor | None:
    """All key-side weights as channels [batch, kv_head, key, channel], to be cached beside the values."""
    channels = []
    for stage in stages:
        for weight in (w for name in KEY_WEIGHTS if (w := getattr(stage, name)) is not None):
            # [batch, key, rank, head], or a gate without ranks, which is one channel.
            channels.append(weight.permute(0, 3, 1, 2) if weight.dim() == 4 else weight.transpose(1, 2).unsqueeze(-1))
    if not channels:
        return None
    packed = torch.cat(channels, dim=-1)
    if packed.shape[1] == kv_heads:
        return packed
    # Of the heads that share values, the channels of one after those of another.
    return packed.unflatten(1, (kv_heads, -1)).transpose(2, 3).flatten(3)


def unpack_key_weights(channels: Tensor, stages: list[ComposeWeights]) -> list[ComposeWeights]:
    """`stages` with their key-side weights read back from the cached `channels`, over the whole key axis.

    With a head of values for every query head they are views; else a step copies them, and only them.
    """
    (heads,) = {weight.shape[-1] for stage in stages for name, weight in stage.dynamic() if name in KEY_WEIGHTS}
    if heads != channels.shape[1]:
        channels = channels.unflatten(-1, (heads // channels.shape[1], -1)).transpose(2, 3).flatten(1, 2)
    start = 0
    unpacked = []
    for stage in stages:
        full: dict[str, Any] = {}
        for name in KEY_WEIGHTS:
            weight = getattr(stage, name)
            if weight is None:
                continue
            width = weight.shape[2] if weight.dim() == 4 else 1
            taken = channels[..., start : start + width]
            start += width
            full[name] = taken.permute(0, 2, 3, 1) if weight.dim() == 4 else taken.squeeze(-1).transpose(1, 2)
        unpacked.append(replace(stage, **full))
    return unpacked
