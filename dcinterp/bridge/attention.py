"""Attention and its head norms as components of the bridge: the model keeps the arithmetic, these supply the hooks."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformer_lens.model_bridge.generalized_components import (
    PositionEmbeddingsAttentionBridge,
    RMSNormalizationBridge,
)

from dcinterp.bridge.compose import ComposeBridge
from dcinterp.model.config import STAGES
from dcinterp.model.kernels.fused.plain import anybody_listens
from dcinterp.shapes import PerHead, Residual, SharedHeads

ATTENTION_TAPS = ("hook_rot_q", "hook_rot_k", "hook_attn_scores", "hook_pattern")
"""Hooks inside the attention arithmetic; the first two exist in rotary models."""


class HeadNormBridge(RMSNormalizationBridge):
    """The norm of queries or keys, [batch, head, pos, d_head]; its epsilon is its own, not that of the blocks."""

    def set_original_component(self, original_component: nn.Module) -> None:
        super().set_original_component(original_component)
        self.config = copy.copy(self.config)
        self.config.eps = original_component.variance_epsilon


class DCAttentionBridge(PositionEmbeddingsAttentionBridge):
    """Attention whose arithmetic stays in the model; this class only supplies the hooks."""

    def set_original_component(self, component: nn.Module) -> None:
        super().set_original_component(component)
        # A hook that never fires would swallow an intervention without a word.
        for dead in ("hook_hidden_states", "hook_cos", "hook_sin", "hook_q_normed", "hook_k_normed"):
            if dead in self._hook_registry:
                del self._hook_registry[dead]
                delattr(self, dead)

    def listening(self) -> bool:
        """Whether a hook inside the attention arithmetic has a listener, so that the fast path will not do."""
        own = [self._hook_registry[name] for name in ATTENTION_TAPS if name in self._hook_registry]
        stages = [self._modules[stage] for stage in STAGES if isinstance(self._modules.get(stage), ComposeBridge)]
        return anybody_listens(own) or any(stage.listening() for stage in stages)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        rest = list(args)
        hidden_states = kwargs.pop("hidden_states") if "hidden_states" in kwargs else rest.pop(0)
        attention: Any = self.original_component
        x = self.hook_in(hidden_states)
        forked = self.config.use_split_qkv_input or self.config.use_attn_in
        inputs = self._forked_inputs(x) if forked else (*attention.project(x), x, x)
        z, pattern = attention.attend(*inputs, *rest, taps=self if self.listening() else None, **kwargs)
        out = self._results(z) if self.config.use_attn_result else attention.write(z)
        return self.hook_out(out), pattern

    def _forked_inputs(self, x: Residual) -> tuple[PerHead, SharedHeads, SharedHeads, Residual, Residual]:
        """Queries, keys and values from an input per head (`hook_q_input` ...), and what the composition reads.

        The dynamic weights of a position read one vector that no head owns. They get the mean over the heads' normed
        inputs, so that the paths into the query side and the key side of the composition run through the `q_input` and
        `k_input` nodes, an equal share through each head: the sum over a layer's nodes then misses nothing.

        Where query heads share keys and values, `k_input` and `v_input` have a copy for each head of these, and of
        `attn_in`, which has one for each query head, they read the mean over the heads that share them.
        """
        heads, width = self.config.n_heads, self.config.d_head
        shared = getattr(self.config, "n_key_value_heads", None) or heads
        source = x if self._captured_pre_ln_residual is None else self._captured_pre_ln_residual
        if self.config.use_split_qkv_input:
            hooks = ((self.hook_q_input, heads), (self.hook_k_input, shared), (self.hook_v_input, shared))
            per_head = [self._fork_and_norm_per_head(source, *hook) for hook in hooks]
        else:
            own = self._fork_and_norm_per_head(source, self.hook_attn_in, heads)
            common = own if shared == heads else own.unflatten(2, (shared, -1)).mean(3)
            per_head = [own, common, common]
        q, k, v = (
            self._project_per_head_qkv(linear, each, each.shape[2], width).transpose(1, 2)
            for linear, each in zip((self.q, self.k, self.v), per_head, strict=True)
        )
        return q, k, v, per_head[0].mean(2), per_head[1].mean(2)

    def _fork_and_norm_per_head(self, source: Any, hook: Any, n_heads: int) -> Any:
        """As in TransformerLens, which asks after its hook what a run inside the hook has cleared."""
        captured = self._captured_pre_ln_residual
        forked = source.unsqueeze(2).expand(-1, -1, n_heads, -1).contiguous()
        forked = hook(forked)
        self._captured_pre_ln_residual = captured
        return forked if captured is None else self._apply_ln1_per_head(forked)

    def _results(self, z: PerHead) -> Residual:
        """What the heads write, each on its own at `hook_result`, and then their sum."""
        flat = self.o.hook_in(z.transpose(1, 2).flatten(2))
        per_head = flat.unflatten(-1, (self.config.n_heads, self.config.d_head))
        return self._compute_per_head_result(per_head, self.config.n_heads, self.config.d_head)
