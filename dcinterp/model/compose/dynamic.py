"""DCMHA: the maps over heads are computed from the tokens, and every ablation of the paper is a flag."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import initialization as init

from dcinterp.model.compose.branches import ComposeWeights, compose
from dcinterp.model.compose.static import StaticMap
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.norm import rms_normalise
from dcinterp.shapes import Attention, Gate, LowRank, Residual


class SideWeights(nn.Module):
    """The dynamic weights of one side (query or key) of one stage.

        w_1, w_2 = chunk(gelu(X W_1) W_2);   w_1 <- rmsnorm over the heads of a group;   w_g = tanh(X W_g)

    W_1: [D, 2 H R] and W_2: [2 H R, 2 H R] for one group; with G groups, G such pairs for H/G heads each.
    `down` is W_1, `up` is W_2, `gate` is W_g.
    """

    def __init__(self, config: DCFormerConfig) -> None:
        super().__init__()
        self.groups, self.rank = config.compose_groups, config.compose_rank
        self.group_heads = config.num_attention_heads // self.groups
        inner = 2 * self.group_heads * self.rank
        if config.compose_projection:
            self.down = nn.Linear(config.hidden_size, self.groups * inner, bias=False)
            self.up = nn.Parameter(torch.empty(self.groups, inner, inner))
        if config.compose_gate:
            self.gate = nn.Linear(config.hidden_size, config.num_attention_heads, bias=False)

    def forward(self, x: Residual) -> tuple[LowRank | None, LowRank | None, Gate | None]:
        w1 = w2 = wg = None
        if hasattr(self, "down"):
            inner = gelu(self.down(x)).unflatten(-1, (self.groups, -1))
            both = torch.einsum("bpgi,gio->bpgo", inner, self.up)
            both = both.unflatten(-1, (2 * self.rank, self.group_heads)).transpose(2, 3)  # [b, p, 2 rank, group, head]
            w1, w2 = both.chunk(2, dim=2)
            w1, w2 = rms_normalise(w1).flatten(3), w2.flatten(3)
        if hasattr(self, "gate"):
            wg = torch.tanh(self.gate(x))
        return w1, w2, wg

    @torch.no_grad()
    def initialise(self) -> None:
        """The paper's initialisation: composition starts close to the identity."""
        heads = self.groups * self.group_heads
        if hasattr(self, "down"):
            for rows in self.down.weight.chunk(self.groups):
                init.xavier_normal_(rows)
            inner = self.up.shape[1]
            # sqrt(2HR)(H+R), per group: the width of W_2 and the heads and rank that share its output.
            init.normal_(self.up, std=0.02 / (math.sqrt(inner) * (self.group_heads + self.rank)))
        if hasattr(self, "gate"):
            init.normal_(self.gate.weight, std=0.05 * math.sqrt(2 / (self.gate.in_features + heads)))


class DynamicCompose(nn.Module):
    """One Compose of DCMHA: static map, query side and key side, each as the config asks."""

    def __init__(self, config: DCFormerConfig) -> None:
        super().__init__()
        self.skip, self.groups = config.compose_skip, config.compose_groups
        self.static = StaticMap(config) if config.compose_static else None
        self.query = SideWeights(config) if config.compose_query_wise else None
        self.key = SideWeights(config) if config.compose_key_wise else None

    def weights(
        self, x_query: Float[Tensor, "batch query d_model"], x_key: Float[Tensor, "batch key d_model"]
    ) -> ComposeWeights:
        """The weights of this stage from the normed input of the layer at the query and at the key positions."""
        w_q1, w_q2, w_qg = self.query(x_query) if self.query is not None else (None, None, None)
        w_k1, w_k2, w_kg = self.key(x_key) if self.key is not None else (None, None, None)
        static = self.static.head_map() if self.static is not None else None
        return ComposeWeights(w_q1, w_q2, w_qg, w_k1, w_k2, w_kg, static, self.skip, self.groups)

    def forward(self, attention: Attention, weights: ComposeWeights, taps: Any = None) -> Attention:
        return compose(attention, weights, taps)


def pack_key_weights(stages: list[ComposeWeights]) -> Tensor | None:
    """All key-side weights as channels [batch, head, key, channel], to be cached beside the values."""
    channels = []
    for stage in stages:
        channels += [w.permute(0, 3, 1, 2) for w in (stage.w_k1, stage.w_k2) if w is not None]
        channels += [stage.w_kg.transpose(1, 2).unsqueeze(-1)] if stage.w_kg is not None else []
    return torch.cat(channels, dim=-1) if channels else None


def unpack_key_weights(channels: Tensor, stages: list[ComposeWeights]) -> list[ComposeWeights]:
    """`stages` with their key-side weights read back from the cached `channels`, over the whole key axis."""
    start = 0

    def take(width: int) -> Tensor:
        nonlocal start
        start += width
        return channels[..., start - width : start]

    unpacked = []
    for stage in stages:
        full = dict(stage.dynamic())
        for name in ("w_k1", "w_k2"):
            if (w := getattr(stage, name)) is not None:
                full[name] = take(w.shape[2]).permute(0, 2, 3, 1)
        if stage.w_kg is not None:
            full["w_kg"] = take(1).squeeze(-1).transpose(1, 2)
        unpacked.append(replace(stage, **full))  # type: ignore[arg-type]
    return unpacked
