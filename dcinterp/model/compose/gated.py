"""Gated attention (Qiu et al. 2025): a sigmoid gate of the query token, after attention.

    A'[h] = sigmoid(x_t . w_h) A[h]                                a gate a head: M is diagonal
    z[h] -> sigmoid(x_t W_h) * z[h]      elementwise, W_h [D, d]   a gate a channel: M is the identity

The first is a gate branch, O_qg: with the skip it is A + (g - 1) A, which is the same but for rounding: in bfloat16,
small gates are known to 1/256 then, and without the skip to 1/256 of themselves. The second leaves A as it is and acts
on what heads have read, between `hook_read` and `hook_z`; its gates are at `hook_w_z`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dcinterp.model.compose.base import ComposeConfig, Composer, Cost, Mechanism
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.shapes import Attention, Residual, ZByPosition


class GatedCompose(Composer):
    """A gate for every head, or for every channel of every head."""

    name: ClassVar[str] = "gated"
    how: ClassVar[str] = "by sigmoid gates of the query"
    MECHANISM: ClassVar[Mechanism | None] = Mechanism(
        "gated attention",
        "A'[h] = σ(x_t w_h) A[h]; elementwise: z[h] ← σ(x_t W_h) z[h]",
        "diagonal, from the query; elementwise: the identity",
        "Qwen3-Next (elementwise), not loaded: its attention is compared",
    )
    STAGES: ClassVar[tuple[str, ...]] = ("post",)
    OPTIONS: ClassVar[Mapping[str, Any]] = {"elementwise": False}
    zero_is_identity: ClassVar[bool] = False

    def __init__(self, config: ComposeConfig) -> None:
        super().__init__(config)
        self.elementwise: bool = self.options(config)["elementwise"]
        self.gate = nn.Linear(config.hidden_size, self.gates(config), bias=False)

    @classmethod
    def gates(cls, config: ComposeConfig) -> int:
        """How many gates a query has."""
        assert config.head_dim is not None
        return config.num_attention_heads * (config.head_dim if cls.options(config)["elementwise"] else 1)

    def weights(
        self, x_query: Float[Tensor, "batch query d_model"], x_key: Float[Tensor, "batch key d_model"]
    ) -> ComposeWeights:
        """The gates of the heads; elementwise, nothing but A itself."""
        if self.elementwise:
            return ComposeWeights()
        share, skip = torch.sigmoid(self.gate(x_query)), self.config.compose_skip
        return ComposeWeights(w_qg=share - 1 if skip else share, skip=skip)

    def out_hooks(self) -> tuple[str, ...]:
        return ("read", "w_z") if self.elementwise else ()

    def finish(self, z: ZByPosition, x_query: Residual, taps: Any = None) -> ZByPosition:
        """The gates of the channels."""
        share = torch.sigmoid(self.gate(x_query)).unflatten(-1, z.shape[2:])
        return z * (share if taps is None else taps.hook_w_z(share))

    def readers(self) -> list[nn.Linear]:
        return [self.gate]

    @classmethod
    def cost(cls, config: ComposeConfig) -> Cost:
        """Making the gates; applying them takes 2 FLOPs a channel of a query, or 2 a head and pair."""
        gates, elementwise = cls.gates(config), cls.options(config)["elementwise"]
        made = config.hidden_size * gates
        return Cost(made, 2 * made + 2 * gates * elementwise, 2 * config.num_attention_heads * (not elementwise))

    @classmethod
    def describe(cls, config: ComposeConfig) -> str:
        return "gated by the query"

    @classmethod
    def written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, attention: Attention
    ) -> Attention:
        out = attention.clone()
        if not cls.options(config)["elementwise"]:
            for h, row in enumerate(tensors["gate.weight"]):
                out[:, h] *= 1 / (1 + torch.exp(-(x * row).sum(-1)))[:, :, None]
        return out

    @classmethod
    def finish_written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, z: ZByPosition
    ) -> ZByPosition:
        out = z.clone()
        if cls.options(config)["elementwise"]:
            rows = iter(tensors["gate.weight"])
            for h in range(z.shape[2]):
                for channel in range(z.shape[3]):
                    out[:, :, h, channel] *= 1 / (1 + torch.exp(-(x * next(rows)).sum(-1)))
        return out
