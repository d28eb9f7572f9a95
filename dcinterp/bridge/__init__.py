"""The bridge to TransformerLens: our models as `TransformerBridge`s, with a hook on every part of the composition.

The only package that imports transformer_lens. Its files, inside out: compose (one stage with its hooks), attention and
mlp, adapter and vit (where the parts of a model are), folding, cache, dcbridge (the object that one works with),
foreign (the same for models that are not ours), wrapping (how a model becomes one). `protocol` says what analyses
expect of any bridge, and `hook_catalogue` lists hooks; these two import no transformer_lens, and so nothing here is
imported before it is used.

Beside the standard hooks, every composed layer l has, for the stages `pre` (scores) and `post` (weights):

    blocks.{l}.attn.{stage}.hook_in, hook_o_b, hook_o_qp, hook_o_kp, hook_o_qg, hook_o_kg, hook_out
                                                                              [batch, head, query, key]
    blocks.{l}.attn.{stage}.hook_w_q1, hook_w_q2 [batch, query, rank, head], hook_w_qg [batch, query, head]
    blocks.{l}.attn.{stage}.hook_w_k1, hook_w_k2 [batch, key, rank, head],   hook_w_kg [batch, key, head]

`hook_attn_scores` holds the composed, masked scores (its softmax is `post.hook_in`) and `hook_pattern` is
`post.hook_out`, the signed matrix that multiplies the values. A branch that a model lacks has no hook.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge as TransformerBridge

    from dcinterp.bridge.adapter import DCFormerAdapter as DCFormerAdapter
    from dcinterp.bridge.attention import DCAttentionBridge as DCAttentionBridge
    from dcinterp.bridge.cache import CompositionWarning as CompositionWarning
    from dcinterp.bridge.cache import DCActivationCache as DCActivationCache
    from dcinterp.bridge.compose import ComposeBridge as ComposeBridge
    from dcinterp.bridge.dcbridge import DCBridge as DCBridge
    from dcinterp.bridge.foreign import ForeignBridge as ForeignBridge
    from dcinterp.bridge.foreign import GainWarning as GainWarning
    from dcinterp.bridge.vit import DCViTAdapter as DCViTAdapter
    from dcinterp.bridge.wrapping import boot as boot
    from dcinterp.bridge.wrapping import wrap as wrap
    from dcinterp.bridge.wrapping import wrap_foreign as wrap_foreign

_HOMES = {
    "ComposeBridge": "compose",
    "CompositionWarning": "cache",
    "DCActivationCache": "cache",
    "DCAttentionBridge": "attention",
    "DCBridge": "dcbridge",
    "DCFormerAdapter": "adapter",
    "DCViTAdapter": "vit",
    "ForeignBridge": "foreign",
    "GainWarning": "foreign",
    "TransformerBridge": "wrapping",
    "boot": "wrapping",
    "wrap": "wrapping",
    "wrap_foreign": "wrapping",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(f"{__name__}.wrapping")  # which also lets foreign code boot our models
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
