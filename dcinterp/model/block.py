"""One block: attention and MLP around the residual stream."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from dcinterp.model.attention import ComposedAttention, HandedOn
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.mask import Sight
from dcinterp.model.mlp import MLP
from dcinterp.model.norm import build_norm
from dcinterp.model.rotary import Rotation
from dcinterp.shapes import Attention, Mask, Residual


class Block(GradientCheckpointingLayer):
    """Sequential (the MLP reads what attention wrote) or, as in Pythia, parallel (both read the same stream)."""

    def __init__(self, config: DCFormerConfig, layer_idx: int) -> None:
        super().__init__()
        self.parallel = config.use_parallel_residual
        self.input_layernorm = build_norm(config)
        self.self_attn = ComposedAttention(config, layer_idx)
        self.post_attention_layernorm = build_norm(config)
        self.mlp = MLP(config)
        if config.depth_scaled_init:
            for writer in (self.self_attn.o_proj, self.mlp.down_proj):
                writer.init_scale = (2 * config.num_hidden_layers) ** -0.5
        if not self.parallel:
            # A place of its own for the stream between attention and MLP, so that a hook there edits the stream.
            self.resid_mid = nn.Identity()

    def forward(
        self,
        hidden_states: Residual,
        rotation: Rotation | None = None,
        mask: Mask | Sight | None = None,
        cache: Cache | None = None,
        patterns: list[Attention | None] | None = None,
        handed: HandedOn | None = None,
    ) -> Residual:
        x = hidden_states
        given: dict[str, Any] = {} if handed is None else {"handed": handed}
        attended, pattern = self.self_attn(
            self.input_layernorm(x),
            rotation=rotation,
            mask=mask,
            cache=cache,
            output_attentions=patterns is not None,
            **given,
        )
        if patterns is not None:
            patterns.append(pattern)
        if self.parallel:
            return x + attended + self.mlp(self.post_attention_layernorm(x))
        middle = self.resid_mid(x + attended)
        return middle + self.mlp(self.post_attention_layernorm(middle))
