"""The decoding cache: keys, values and the key side of the composition, bounded by the window in local layers."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.compose.dynamic import pack_key_weights, unpack_key_weights
from dcinterp.model.config import DCFormerConfig
from dcinterp.shapes import PerHead


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
    """`cache`, with layers that know our windows if it is still empty (`generate` builds a generic one)."""
    fitted = len(cache.layers) == config.num_hidden_layers and all(
        config.window(layer) is None or isinstance(held, LocalLayer) for layer, held in enumerate(cache.layers)
    )
    if isinstance(cache, DynamicCache) and cache.get_seq_length() == 0 and not fitted:
        cache.layers = _layers(config)
    return cache


def _layers(config: DCFormerConfig) -> list[Any]:
    windows = [config.window(layer) for layer in range(config.num_hidden_layers)]
    return [DynamicLayer() if w is None else LocalLayer(sliding_window=w) for w in windows]


def update(
    cache: Cache, layer: int, k: PerHead, v: PerHead, stages: list[ComposeWeights]
) -> tuple[Float[Tensor, "batch head key d_head"], Float[Tensor, "batch head key d_head"], list[ComposeWeights]]:
    """Add the new positions to the cache and return everything it holds for this layer.

    The key-side weights travel as extra channels of the values, so that reordering beams, selecting a batch and
    cropping, which transformers does to keys and values, hold for them too.
    """
    channels = pack_key_weights(stages)
    k, packed = cache.update(k, v if channels is None else torch.cat([v, channels], dim=-1), layer)
    if channels is None:
        return k, packed, stages
    v, cached = _split(packed, v.shape[-1])
    return k, v, unpack_key_weights(cached, stages)


def _split(packed: Tensor, width: int) -> tuple[Tensor, Tensor]:
    return packed[..., :width], packed[..., width:]
