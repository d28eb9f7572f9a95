"""The bridge to TransformerLens: our models as `TransformerBridge`s, with a hook on every part of the composition.

The only package that imports transformer_lens. Its files, inside out: compose (one stage with its hooks), attention and
mlp, adapter and vit (where the parts of a model are), folding, cache, dcbridge (the object that one works with),
wrapping (how a model becomes one).

Beside the standard hooks, every composed layer l has, for the stages `pre` (scores) and `post` (weights):

    blocks.{l}.attn.{stage}.hook_in, hook_o_b, hook_o_qp, hook_o_kp, hook_o_qg, hook_o_kg, hook_out
                                                                              [batch, head, query, key]
    blocks.{l}.attn.{stage}.hook_w_q1, hook_w_q2 [batch, query, rank, head], hook_w_qg [batch, query, head]
    blocks.{l}.attn.{stage}.hook_w_k1, hook_w_k2 [batch, key, rank, head],   hook_w_kg [batch, key, head]

`hook_attn_scores` holds the composed, masked scores (its softmax is `post.hook_in`) and `hook_pattern` is
`post.hook_out`, the signed matrix that multiplies the values. A branch that a model lacks has no hook.
"""

from __future__ import annotations

from transformer_lens.model_bridge import TransformerBridge

from dcinterp.bridge.adapter import DCFormerAdapter
from dcinterp.bridge.attention import DCAttentionBridge
from dcinterp.bridge.cache import CompositionWarning, DCActivationCache
from dcinterp.bridge.compose import ComposeBridge
from dcinterp.bridge.dcbridge import DCBridge
from dcinterp.bridge.vit import DCViTAdapter
from dcinterp.bridge.wrapping import boot, register, wrap

__all__ = [
    "ComposeBridge",
    "CompositionWarning",
    "DCActivationCache",
    "DCAttentionBridge",
    "DCBridge",
    "DCFormerAdapter",
    "DCViTAdapter",
    "TransformerBridge",
    "boot",
    "wrap",
]

register()
