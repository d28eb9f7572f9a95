"""Talking heads: one learned map over heads, the same for every token."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import initialization as init

from dcinterp.model.compose.branches import ComposeWeights, compose
from dcinterp.model.config import DCFormerConfig
from dcinterp.shapes import Attention, HeadMap


class StaticMap(nn.Module):
    """W_b, one [head_from, head_to] matrix per group."""

    def __init__(self, config: DCFormerConfig) -> None:
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


class StaticCompose(nn.Module):
    """Compose with nothing but W_b (and the skip, when the config keeps it)."""

    def __init__(self, config: DCFormerConfig) -> None:
        super().__init__()
        self.skip = config.compose_skip
        self.static = StaticMap(config)

    def weights(
        self, x_query: Float[Tensor, "batch query d_model"], x_key: Float[Tensor, "batch key d_model"]
    ) -> ComposeWeights:
        """Static composition reads no token: only W_b."""
        return ComposeWeights(static=self.static.head_map(), skip=self.skip)

    def forward(self, attention: Attention, weights: ComposeWeights, taps: Any = None) -> Attention:
        return compose(attention, weights, taps)
