"""TransformerLens's activation cache, which says where it would mislead about composed heads."""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

from torch import Tensor
from transformer_lens import ActivationCache
from transformer_lens.utilities import get_act_name

from dcinterp.support.errors import UserError

Own = TypeVar("Own", bound=ActivationCache)


def own_kind(cache: Own, part: ActivationCache) -> Own:
    """A part of a cache as one of its kind; TransformerLens makes plain ones."""
    return type(cache)(part.cache_dict, cache.model, has_batch_dim=part.has_batch_dim)


class CompositionWarning(UserWarning):
    """An assumption of a tool that holds for plain attention does not hold for composed heads."""


def _full_name(key: Any) -> str:
    """The hook that a key of TransformerLens's shorthand stands for."""
    return str(get_act_name(*key) if isinstance(key, tuple) else get_act_name(str(key)))


class DCActivationCache(ActivationCache):
    """TransformerLens's cache, which refuses or warns where it would mislead about a model of ours."""

    model: Any

    def apply_slice_to_batch_dim(self, *args: Any, **kwargs: Any) -> DCActivationCache:
        """As in TransformerLens; a part of this cache refuses and warns as well."""
        return own_kind(self, super().apply_slice_to_batch_dim(*args, **kwargs))

    def logit_attrs(self, *args: Any, **kwargs: Any) -> Tensor:
        """As in TransformerLens.

        Raises:
            UserError: the final norm has a gain that is not folded into the unembedding yet, which this method ignores.
        """
        if not self.model.final_norm_is_folded():
            raise UserError(
                "logit_attrs would ignore the gain of the final norm; call enable_compatibility_mode() on the bridge "
                "first, which folds it into the unembedding, and run again."
            )
        return super().logit_attrs(*args, **kwargs)

    def _get_cached_ln_scale(self, layer: int | None, mlp_input: bool, *args: Any, **kwargs: Any) -> Tensor:
        """As in TransformerLens, which divides by it wherever a norm is applied to a part of the stream.

        `apply_ln_to_stack`, `decompose_resid`, `stack_head_results`, `stack_neuron_results` and
        `get_full_resid_decomposition` (with `apply_ln=True`) all come here. None of them multiplies by the norm's gain.

        Raises:
            UserError: that norm has a gain that is not folded into the weights behind it yet.
        """
        if not self.model.norm_is_folded(layer, mlp_input):
            raise UserError(
                "Applying a norm to parts of the residual stream (apply_ln) would ignore the norm's gain; call "
                "enable_compatibility_mode() on the bridge first, which folds it into the weights, and run again."
            )
        return super()._get_cached_ln_scale(layer, mlp_input, *args, **kwargs)

    def __getitem__(self, key: Any) -> Tensor:
        # The shorthand is what pattern detectors use; who writes the full name has read where it comes from.
        short = isinstance(key, tuple) or not str(key).startswith("blocks.")
        if short and "post" in self.model.stages and _full_name(key).endswith("hook_pattern"):
            warnings.warn(
                "The pattern of composed heads is signed and its rows do not sum to 1; the softmax before composition "
                "is at blocks.{layer}.attn.post.hook_in.",
                CompositionWarning,
                stacklevel=2,
            )
        return super().__getitem__(key)
