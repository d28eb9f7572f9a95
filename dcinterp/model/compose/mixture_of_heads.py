"""Mixture of heads (MoH, Jin et al. 2024): a router of the query token keeps some heads, and some are always on.

    A'[h] = g[t, h] A[h]
    g of the first S heads, the shared ones:    a_1 softmax(x_t W_s)[h]
    g of the others:                            a_2 softmax(x_t W_r)[h] for the k largest, 0 for the rest
    a_1, a_2 = softmax(x_t W_a)                 (without shared heads, a_2 = 1)

With the skip the gate is g - 1, which comes to the same but for rounding: in bfloat16, small gates are known to 1/256
then, and without the skip to 1/256 of themselves. While training, every layer adds
load_balance * sum over routed heads of f[h] P[h] to the loss, where f[h] is the share of the tokens that keep h, and
P[h] the mean of softmax(x_t W_r)[h] over tokens: it is least where all heads are kept alike. Padding does not count
(`ExtraLoss`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dcinterp.model.compose.base import ComposeConfig, Composer, Cost, Mechanism
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.shapes import Attention, Gate, Residual
from dcinterp.support.errors import UserError


class MixtureOfHeads(Composer):
    """Every head's attention times its gate at the query; `kept` is the share of the routed heads that stay on."""

    name: ClassVar[str] = "mixture-of-heads"
    how: ClassVar[str] = "by a router that keeps some heads of every query"
    MECHANISM: ClassVar[Mechanism | None] = Mechanism(
        "mixture of heads (MoH)",
        "A'[h] = g_t[h] A[h], g = 0 but for the shared and the k strongest heads",
        "diagonal and sparse, from the query",
    )
    STAGES: ClassVar[tuple[str, ...]] = ("post",)
    OPTIONS: ClassVar[Mapping[str, Any]] = {"kept": 0.5, "shared": 1, "load_balance": 0.01}
    zero_is_identity: ClassVar[bool] = False

    routed: nn.Linear
    shared: nn.Linear
    parts: nn.Linear

    def __init__(self, config: ComposeConfig) -> None:
        super().__init__(config)
        for name, outputs in self.maps(config).items():
            setattr(self, name, nn.Linear(config.hidden_size, outputs, bias=False))
        self.kept, self.balance = self.heads_kept(config), float(self.options(config)["load_balance"])

    @classmethod
    def maps(cls, config: ComposeConfig) -> dict[str, int]:
        """The linear maps that read the token, with how many numbers each gives; one shared head has no competitor."""
        shared = cls.options(config)["shared"]
        sizes = {"shared": shared if shared > 1 else 0, "routed": config.num_attention_heads - shared}
        return {name: n for name, n in (sizes | {"parts": 2 if shared else 0}).items() if n}

    @classmethod
    def heads_kept(cls, config: ComposeConfig) -> int:
        """k, how many of the routed heads stay on."""
        options = cls.options(config)
        return max(1, round(options["kept"] * (config.num_attention_heads - options["shared"])))

    @classmethod
    def check(cls, config: ComposeConfig) -> None:
        super().check(config)
        options, heads = cls.options(config), config.num_attention_heads
        if not 0 <= options["shared"] < heads:
            raise UserError(
                f"compose_options has 'shared' = {options['shared']}; choose from 0 to {heads - 1}, so that one of the "
                f"{heads} heads is routed."
            )
        if not 0 <= options["load_balance"] < math.inf:
            raise UserError(
                f"compose_options has 'load_balance' = {options['load_balance']}; it weighs a loss: 0 or more."
            )
        if not 0 < options["kept"] <= 1:
            raise UserError(f"compose_options has 'kept' = {options['kept']}; it is a share, above 0 and up to 1.")

    def weights(
        self, x_query: Float[Tensor, "batch query d_model"], x_key: Float[Tensor, "batch key d_model"]
    ) -> ComposeWeights:
        """The gates of the query; in training, also what they add to the loss."""
        odds = self.routed(x_query).softmax(-1)
        chosen = torch.zeros_like(odds).scatter(-1, odds.topk(self.kept).indices, 1)
        if self.training and self.balance:
            self.extra_loss = partial(self._imbalance, odds, chosen)
        gate, skip = self._with_shared(odds * chosen, x_query), self.config.compose_skip
        return ComposeWeights(w_qg=gate - 1 if skip else gate, skip=skip)

    def _imbalance(
        self,
        odds: Float[Tensor, "batch pos routed_head"],
        chosen: Float[Tensor, "batch pos routed_head"],
        counted: Bool[Tensor, "batch pos"] | None,
    ) -> Float[Tensor, ""]:
        """What these gates add to the loss, by the tokens that count."""
        # In float32: in float16 a batch has more tokens than there are numbers.
        tokens = (
            torch.ones_like(odds[..., :1]).float() if counted is None else counted[..., None].to(odds.device).float()
        )
        kept, probability = ((x * tokens).sum((0, 1)) / tokens.sum().clamp(min=1) for x in (chosen, odds))
        return self.balance * (kept * probability).sum()

    def _with_shared(self, routed: Float[Tensor, "batch pos routed_head"], x: Residual) -> Gate:
        if not hasattr(self, "parts"):
            return routed
        first, second = self.parts(x).softmax(-1).split(1, dim=-1)
        shared = self.shared(x).softmax(-1) if hasattr(self, "shared") else torch.ones_like(first)
        return torch.cat([first * shared, second * routed], dim=-1)

    def readers(self) -> list[nn.Linear]:
        return [getattr(self, name) for name in self.maps(self.config)]

    @classmethod
    def cost(cls, config: ComposeConfig) -> Cost:
        """All heads are computed: what routing could save, the kernels here do not."""
        size = config.hidden_size * sum(cls.maps(config).values())
        return Cost(size, 2 * size, 2 * config.num_attention_heads)

    @classmethod
    def describe(cls, config: ComposeConfig) -> str:
        return f"gated by a router that keeps {cls.heads_kept(config)} of the heads that are not shared"

    @classmethod
    def written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, attention: Attention
    ) -> Attention:
        out, shared = torch.zeros_like(attention), cls.options(config)["shared"]
        for b, text in enumerate(x):
            for t, token in enumerate(text):
                odds = {
                    name: torch.exp(tensors[f"{name}.weight"] @ token) if f"{name}.weight" in tensors else torch.ones(1)
                    for name in ("shared", "routed", "parts")
                }
                part = odds["parts"] / odds["parts"].sum() if shared else torch.ones(2)
                for h in range(shared):
                    out[b, h, t] = part[0] * odds["shared"][h] / odds["shared"].sum() * attention[b, h, t]
                order = sorted(range(len(odds["routed"])), key=lambda h: -float(odds["routed"][h]))
                for h in order[: cls.heads_kept(config)]:
                    share = part[1] * odds["routed"][h] / odds["routed"].sum()
                    out[b, shared + h, t] = share * attention[b, shared + h, t]
        return out
