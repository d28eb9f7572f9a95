"""Differential attention (Ye et al. 2024): heads h and h + H/2 are a pair, and both read with one difference.

    A'[h] = A'[h + H/2] = A[h] - lambda A[h + H/2],     lambda = exp(q1 . k1) - exp(q2 . k2) + lambda_0
    (z[h], z[h + H/2]) -> (1 - lambda_0) rmsnorm(z[h], z[h + H/2])      over the pair's output, before W_O
    lambda_0 = 0.8 - 0.6 exp(-0.3 layer)

q1, k1, q2, k2 are learned vectors of a head's width; a pair is what the paper calls one head. The norm has no gain, as
in transformers' DiffLlama; the paper's gain rescales columns of W_O. The skip makes no difference to what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import initialization as init

from dcinterp.model.compose.base import ComposeConfig, Composer, Cost, Mechanism, Place
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.norm import rms_normalise
from dcinterp.shapes import Attention, Residual, ZByPosition
from dcinterp.support.errors import UserError

VECTORS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


def first_lambda(layer: int) -> float:
    """lambda_0: what lambda is about at the start of training."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class DifferentialCompose(Composer):
    """A map over heads with one learned number, and a norm over the output of every pair."""

    name: ClassVar[str] = "differential"
    how: ClassVar[str] = "in pairs, one minus lambda times the other"
    MECHANISM: ClassVar[Mechanism | None] = Mechanism(
        "differential attention",
        "A'[h] = A'[h+H/2] = A[h] - λ A[h+H/2], then a norm over the pair's output",
        "[[1, 1], [-λ, -λ]] for every pair, the same for all tokens",
        "layout `diffllama` of transformers, loaded",
    )
    STAGES: ClassVar[tuple[str, ...]] = ("post",)
    zero_is_identity: ClassVar[bool] = False

    lambda_init: Tensor
    lambda_q1: Tensor
    lambda_k1: Tensor
    lambda_q2: Tensor
    lambda_k2: Tensor

    def __init__(self, config: ComposeConfig) -> None:
        super().__init__(config)
        assert config.head_dim is not None
        for name in VECTORS:
            setattr(self, name, nn.Parameter(torch.zeros(config.head_dim)))
        # Saved with the weights, so that a layer carries its own wherever it is moved.
        self.register_buffer("lambda_init", torch.tensor(first_lambda(0)))

    def place(self, place: Place) -> Composer:
        super().place(place)
        self.lambda_init.fill_(first_lambda(place.layer))
        return self

    @torch.no_grad()
    def initialise(self) -> None:
        for name in VECTORS:
            init.normal_(getattr(self, name), std=0.1)
        init.constant_(self.lambda_init, first_lambda(self.placed.layer))

    @classmethod
    def check(cls, config: ComposeConfig) -> None:
        super().check(config)
        if config.num_attention_heads % 2:
            raise UserError(
                f"compose='differential' needs pairs of heads, and {config.num_attention_heads} is odd; choose an even "
                "num_attention_heads."
            )

    def weights(
        self, x_query: Float[Tensor, "batch query d_model"], x_key: Float[Tensor, "batch key d_model"]
    ) -> ComposeWeights:
        """Reads no token: [head_from, head_to] = [[1, 1], [-lambda, -lambda]], each over the pairs."""
        first, second = (self.lambda_q1 * self.lambda_k1).sum(), (self.lambda_q2 * self.lambda_k2).sum()
        share = first.exp() - second.exp() + self.lambda_init.to(first.dtype)
        one = torch.eye(self.config.num_attention_heads // 2, dtype=share.dtype, device=share.device)
        plus = torch.cat([one, one], dim=1)
        return ComposeWeights(static=torch.cat([plus, -share * plus]), skip=False)

    def out_hooks(self) -> tuple[str, ...]:
        return ("read",)

    def finish(self, z: ZByPosition, x_query: Residual, taps: Any = None) -> ZByPosition:
        """The norm over both heads of a pair."""
        pairs = torch.cat(z.chunk(2, dim=2), dim=-1)
        normed = rms_normalise(pairs, self.config.norm_eps) * (1 - self.lambda_init)
        return torch.cat(normed.chunk(2, dim=-1), dim=2)

    @classmethod
    def cost(cls, config: ComposeConfig) -> Cost:
        """A static map is applied whole, with its zeros; the norm scales every channel of a query."""
        assert config.head_dim is not None
        heads = config.num_attention_heads
        return Cost(4 * config.head_dim, 2 * heads * config.head_dim, 2 * heads**2)

    @classmethod
    def describe(cls, config: ComposeConfig) -> str:
        return "composed in pairs by differences, with a norm over each pair"

    @classmethod
    def written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, attention: Attention
    ) -> Attention:
        exponents = [float(sum(tensors[f"lambda_q{n}"] * tensors[f"lambda_k{n}"])) for n in (1, 2)]
        share = math.exp(exponents[0]) - math.exp(exponents[1]) + float(tensors["lambda_init"])
        out, half = torch.zeros_like(attention), config.num_attention_heads // 2
        for h in range(half):
            out[:, h] = out[:, h + half] = attention[:, h] - share * attention[:, h + half]
        return out

    @classmethod
    def finish_written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, z: ZByPosition
    ) -> ZByPosition:
        out, half, width = torch.zeros_like(z), config.num_attention_heads // 2, z.shape[-1]
        for h in range(half):
            square = ((z[:, :, h] ** 2).sum(-1) + (z[:, :, h + half] ** 2).sum(-1)) / (2 * width)
            scale = (1 - tensors["lambda_init"]) / torch.sqrt(square + config.norm_eps)
            out[:, :, h], out[:, :, h + half] = (z[:, :, i] * scale[..., None] for i in (h, h + half))
        return out
