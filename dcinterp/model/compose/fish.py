"""FiSHformer (Nguyen et al. 2022): few heads attend, and more heads use mixtures of what they attend to.

    A'[h'] = sum over h < G of P[h, h'] A[h]          for all H heads: a rectangular map

G is the option `attending`. The map is held in a square one: heads from G on attend too, but nobody uses their
attention, so that the model equals one without their queries and keys (which it has, and trains for nothing). The noise
that the paper adds to the mixed scores in training is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import initialization as init

from dcinterp.model.compose.base import ComposeConfig, Composer, Cost, Mechanism
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.shapes import Attention, Residual
from dcinterp.support.errors import UserError


class FishCompose(Composer):
    """One learned map from the heads that attend to all heads; there is no skip."""

    name: ClassVar[str] = "fish"
    how: ClassVar[str] = "as mixtures of few attending heads"
    MECHANISM: ClassVar[Mechanism | None] = Mechanism(
        "shared attending heads (FiSHformer)",
        "A'[h'] = Σ_{h<G} P[h, h'] A[h]",
        "learned, rectangular (zeros below row G), the same for all tokens",
    )
    OPTIONS: ClassVar[Mapping[str, Any]] = {"attending": 2}

    def __init__(self, config: ComposeConfig) -> None:
        super().__init__(config)
        self.mixing = nn.Parameter(torch.empty(self.options(config)["attending"], config.num_attention_heads))

    @torch.no_grad()
    def initialise(self) -> None:
        """Every head uses one attending head, all of them in turn."""
        attending, heads = self.mixing.shape
        init.copy_(self.mixing, torch.eye(attending).repeat(1, -(-heads // attending))[:, :heads])

    @torch.no_grad()
    def start_at_identity(self) -> None:
        attending, heads = self.mixing.shape
        if attending < heads:
            self.refuse_identity(f"only {attending} of {heads} heads attend")
        self.mixing.copy_(torch.eye(heads))

    @classmethod
    def check(cls, config: ComposeConfig) -> None:
        super().check(config)
        attending, heads = cls.options(config)["attending"], config.num_attention_heads
        if not 1 <= attending <= heads:
            raise UserError(f"compose_options has 'attending' = {attending}; choose from 1 to {heads}, the heads.")

    def weights(
        self, x_query: Float[Tensor, "batch query d_model"], x_key: Float[Tensor, "batch key d_model"]
    ) -> ComposeWeights:
        """Reads no token."""
        attending, heads = self.mixing.shape
        nobody = self.mixing.new_zeros(heads - attending, heads)
        return ComposeWeights(static=torch.cat([self.mixing, nobody]), skip=False)

    @classmethod
    def cost(cls, config: ComposeConfig) -> Cost:
        """A static map is applied whole, with its zeros."""
        heads = config.num_attention_heads
        return Cost(parameters=cls.options(config)["attending"] * heads, per_pair=2 * heads**2)

    @classmethod
    def describe(cls, config: ComposeConfig) -> str:
        return "mixed from few heads that attend"

    @classmethod
    def written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, attention: Attention
    ) -> Attention:
        out = torch.zeros_like(attention)
        for shares, row in enumerate(tensors["mixing"]):
            for to, share in enumerate(row):
                out[:, to] += share * attention[:, shares]
        return out
