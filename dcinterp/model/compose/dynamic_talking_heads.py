"""Talking heads whose maps over heads depend on the tokens: the "dynamic projections" of Shazeer et al. 2020.

    A'[h'] = sum over h of (W_b + P_t + N_s)[h, h'] A[h],      P_t = reshape(x_t W_q),   N_s = reshape(x_s W_k)

(+ A[h'], with the skip). P and N are whole matrices, where DCMHA has low rank and gates. In the terms of `branches`
they are low-rank branches of full rank, O_qp and O_kp: w_1 picks head r for rank r, and w_2[r] is row r of the map.
With groups, the maps stay inside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import initialization as init

from dcinterp.model.compose.base import ComposeConfig, Cost, Mechanism
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.compose.by_sides import ComposerBySides
from dcinterp.model.compose.static import StaticMap
from dcinterp.shapes import Attention, LowRank, Residual


class MapReader(nn.Linear):
    """W_q or W_k, from a token to the entries of its map; with its own first values."""

    def __init__(self, width: int, groups: int, size: int) -> None:
        super().__init__(width, groups * size**2, bias=False)
        self.size = size

    # Of the module that holds the parameter: transformers passes over modules without parameters of their own.
    @torch.no_grad()
    def initialise(self) -> None:
        """Small beside the static map or the skip: rows of about 0.1."""
        init.normal_(self.weight, std=0.1 / math.sqrt(self.in_features * self.size))


class TokenMaps(nn.Module):
    """The map over heads that a token chooses, from the query or from the key; `maps` is W_q or W_k."""

    def __init__(self, config: ComposeConfig) -> None:
        super().__init__()
        self.groups, self.size = config.compose_groups, config.num_attention_heads // config.compose_groups
        self.maps = MapReader(config.hidden_size, self.groups, self.size)

    def forward(self, x: Residual) -> tuple[LowRank, LowRank]:
        """w_1, the same everywhere, and w_2: [batch, pos, rank = head of the group that shares, head]."""
        chosen = self.maps(x).unflatten(-1, (self.groups, self.size, self.size))  # [b, p, group, from, to]
        picks = torch.eye(self.size, dtype=x.dtype, device=x.device).repeat(1, self.groups)
        return picks.expand(*x.shape[:2], -1, -1), chosen.transpose(2, 3).flatten(3)

    @torch.no_grad()
    def start_at_identity(self) -> None:
        """Maps of zeros, for every token."""
        self.maps.weight.zero_()


class DynamicTalkingHeads(ComposerBySides):
    """A whole map over heads from the query token, one from the key token, and W_b, as far as the config asks."""

    name: ClassVar[str] = "dynamic-talking-heads"
    SIDE: ClassVar[type[nn.Module]] = TokenMaps
    how: ClassVar[str] = "by whole maps over heads that tokens choose"
    MECHANISM: ClassVar[Mechanism | None] = Mechanism(
        "talking heads, dynamic",
        "A' = A (W_b + P_t + N_s)",
        "learned, and of full rank from the query and from the key",
    )

    def weights(
        self, x_query: Float[Tensor, "batch query d_model"], x_key: Float[Tensor, "batch key d_model"]
    ) -> ComposeWeights:
        """The maps of this stage, as branches of full rank."""
        w_q1, w_q2 = self.query(x_query) if self.query is not None else (None, None)
        w_k1, w_k2 = self.key(x_key) if self.key is not None else (None, None)
        return ComposeWeights(
            w_q1=w_q1,
            w_q2=w_q2,
            w_k1=w_k1,
            w_k2=w_k2,
            static=self.static.head_map() if self.static is not None else None,
            skip=self.config.compose_skip,
            groups=self.config.compose_groups,
        )

    def readers(self) -> list[nn.Linear]:
        return [side.maps for side in self.sides]

    @classmethod
    def cost(cls, config: ComposeConfig) -> Cost:
        """A map a side and token, applied as a branch of full rank: 4 H (H / groups) FLOPs a pair."""
        heads, size = config.num_attention_heads, config.num_attention_heads // config.compose_groups
        sides, read = config.compose_query_wise + config.compose_key_wise, config.hidden_size * heads * size
        static = StaticMap.cost(config) if config.compose_static else Cost()
        return Cost(sides * read + static.parameters, 2 * sides * read, sides * 4 * heads * size + static.per_pair)

    @classmethod
    def describe(cls, config: ComposeConfig) -> str:
        sides = [side for side in ("query", "key") if getattr(config, f"compose_{side}_wise")]
        static = " and a static map" if config.compose_static else ""
        groups = f" in {config.compose_groups} groups" if config.compose_groups > 1 else ""
        return f"composed{groups} by whole maps of the {' and the '.join(sides) or 'nothing'}{static}"

    @classmethod
    def written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, attention: Attention
    ) -> Attention:
        out = attention.clone() if config.compose_skip else torch.zeros_like(attention)
        if config.compose_static:
            StaticMap.add_written_out(out, attention, tensors["static.weight"])
        size, length = config.num_attention_heads // config.compose_groups, x.shape[1]
        for side, shape in (("query", (-1, length, 1)), ("key", (-1, 1, length))):
            if f"{side}.maps.weight" not in tensors:
                continue
            rows = iter(tensors[f"{side}.maps.weight"])
            for group in range(config.compose_groups):
                for shares in range(group * size, (group + 1) * size):
                    for to in range(group * size, (group + 1) * size):
                        out[:, to] += (x @ next(rows)).reshape(shape) * attention[:, shares]
        return out
