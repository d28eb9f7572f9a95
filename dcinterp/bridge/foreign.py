"""TransformerLens's bridge over other people's models, with a warning where its cache would mislead."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor
from transformer_lens import ActivationCache
from transformer_lens.model_bridge import TransformerBridge

from dcinterp.bridge.cache import own_kind
from dcinterp.bridge.hook_points import take_edits_in_place
from dcinterp.bridge.lock import LockedBridge
from dcinterp.bridge.processing import same_predictions


class GainWarning(UserWarning):
    """A tool of the cache leaves out the gain of a norm that is not folded into the weights behind it."""


class ForeignActivationCache(ActivationCache):
    """TransformerLens's cache, which says where parts of the stream are normed without the norm's gain.

    For our own models this is refused (`DCActivationCache`); of another architecture nobody knows what its norms do
    with their weights, so it is a warning here.
    """

    model: Any

    def apply_slice_to_batch_dim(self, *args: Any, **kwargs: Any) -> ForeignActivationCache:
        """As in TransformerLens; a part of this cache warns as well."""
        return own_kind(self, super().apply_slice_to_batch_dim(*args, **kwargs))

    def _get_cached_ln_scale(self, layer: int | None, mlp_input: bool, *args: Any, **kwargs: Any) -> Tensor:
        if layer is None or layer == self.model.cfg.n_layers:
            norm = getattr(self.model, "ln_final", None)
        else:
            norm = getattr(self.model.blocks[layer], "ln2" if mlp_input else "ln1", None)
        # Weights may have been processed without the norms (fold_ln=False); where they were folded, no gain is left.
        if has_gain(norm):
            warnings.warn(
                "The parts are divided by the scale of a norm, without the norm's gain, so what is projected from them "
                "is not what the model computes; call enable_compatibility_mode() on the bridge first and run again.",
                GainWarning,
                stacklevel=4,
            )
        return super()._get_cached_ln_scale(layer, mlp_input, *args, **kwargs)


class ForeignBridge(LockedBridge):
    """A `TransformerBridge` whose caches are `ForeignActivationCache`s; its runs hold `lock`."""

    _weights_processed: bool

    def run_with_cache(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens."""
        output, cache = super().run_with_cache(*args, **kwargs)
        if isinstance(cache, ActivationCache):
            cache = ForeignActivationCache(cache.cache_dict, self, has_batch_dim=cache.has_batch_dim)
        return output, cache

    def process_weights(self, *args: Any, **kwargs: Any) -> None:
        """As in TransformerLens.

        Raises:
            UserError: the model predicts something else afterwards, which TransformerLens does not see.
        """
        with same_predictions(self):
            super().process_weights(*args, **kwargs)


def guarded(bridge: TransformerBridge) -> ForeignBridge:
    """The same bridge, as one that warns."""
    bridge.__class__ = ForeignBridge
    assert isinstance(bridge, ForeignBridge)
    bridge.take_lock()
    take_edits_in_place(bridge)
    return bridge


def has_gain(norm: Any) -> bool:
    """Whether a norm's component multiplies by anything but 1, or adds anything.

    Those of Gemma's kind multiply by 1 plus their weight.
    """
    none = 0 if getattr(getattr(norm, "config", None), "rmsnorm_uses_offset", False) else 1
    inner = getattr(norm, "original_component", None)
    weight, bias = getattr(inner, "weight", None), getattr(inner, "bias", None)
    moved = isinstance(weight, Tensor) and bool((weight != none).any())
    return moved or (isinstance(bias, Tensor) and bool((bias != 0).any()))
