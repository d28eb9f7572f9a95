"""Talking heads (Shazeer et al. 2020): one learned map over heads, the same for every token, and maybe a bias.

    A'[h'] = sum over h of W_b[h, h'] A[h] + b[h']      (+ A[h'], with the skip)

CaiT has the bias. Before the softmax it changes nothing, because the softmax ignores what is equal for all keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import initialization as init

from dcinterp.model.compose.base import ComposeConfig, Composer, Cost, Mechanism
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.shapes import Attention, HeadMap, Residual


class StaticMap(nn.Module):
    """W_b, one [head_from, head_to] matrix per group."""

    def __init__(self, config: ComposeConfig) -> None:
        super().__init__()
        size = config.num_attention_heads // config.compose_groups
        self.weight = nn.Parameter(torch.empty(config.compose_groups, size, size))

    def head_map(self) -> HeadMap:
        """W_b over all heads, block diagonal when there are groups."""
        return torch.block_diag(*self.weight)

    @torch.no_grad()
    def initialise(self) -> None:
        for block in self.weight:
            init.xavier_normal_(block)

    @torch.no_grad()
    def start_at_identity(self, skip: bool) -> None:
        """Nothing beside the skip; without it, every head itself."""
        for block in self.weight:
            block.copy_(torch.zeros_like(block) if skip else torch.eye(len(block)))

    @staticmethod
    def cost(config: ComposeConfig) -> Cost:
        """A block a group; but the map is applied whole, with its zeros."""
        heads = config.num_attention_heads
        return Cost(parameters=heads * (heads // config.compose_groups), per_pair=2 * heads**2)

    @staticmethod
    def add_written_out(out: Attention, attention: Attention, blocks: Float[Tensor, "group head_from head_to"]) -> None:
        """Add what the map makes of `attention` to `out`, number by number."""
        size = blocks.shape[-1]
        for group, block in enumerate(blocks):
            for to in range(size):
                for h in range(size):
                    out[:, group * size + to] += block[h, to] * attention[:, group * size + h]


class StaticCompose(Composer):
    """Compose with nothing but W_b, a bias if the options say so, and the skip, when the config keeps it."""

    name: ClassVar[str] = "static"
    how: ClassVar[str] = "by one learned map"
    MECHANISM: ClassVar[Mechanism | None] = Mechanism(
        "talking heads",
        "A' = A W_b + b",
        "learned, the same for all tokens",
        "CaiT (image models of `timm`), not loaded: its attention is compared",
    )
    OPTIONS: ClassVar[Mapping[str, Any]] = {"bias": False}

    def __init__(self, config: ComposeConfig) -> None:
        super().__init__(config)
        self.static = StaticMap(config)
        if self.options(config)["bias"]:
            self.bias = nn.Parameter(torch.zeros(config.num_attention_heads))

    @torch.no_grad()
    def initialise(self) -> None:
        if hasattr(self, "bias"):
            init.zeros_(self.bias)

    @torch.no_grad()
    def start_at_identity(self) -> None:
        self.static.start_at_identity(self.config.compose_skip)
        if hasattr(self, "bias"):
            self.bias.zero_()

    def weights(
        self, x_query: Float[Tensor, "batch query d_model"], x_key: Float[Tensor, "batch key d_model"]
    ) -> ComposeWeights:
        """Static composition reads no token: only W_b."""
        bias = getattr(self, "bias", None)
        return ComposeWeights(static=self.static.head_map(), skip=self.config.compose_skip, bias=bias)

    @classmethod
    def cost(cls, config: ComposeConfig) -> Cost:
        static = StaticMap.cost(config)
        return replace(static, parameters=static.parameters + cls.options(config)["bias"] * config.num_attention_heads)

    @classmethod
    def describe(cls, config: ComposeConfig) -> str:
        return "composed by a static map"

    @classmethod
    def written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, attention: Attention
    ) -> Attention:
        out = attention.clone() if config.compose_skip else torch.zeros_like(attention)
        StaticMap.add_written_out(out, attention, tensors["static.weight"])
        if "bias" in tensors:
            for h in range(config.num_attention_heads):
                out[:, h] += tensors["bias"][h]
        return out
