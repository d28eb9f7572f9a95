"""The two norms of the family, and the one that dynamic weights use."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import rms_norm

WEIGHT_NORM_EPS = 1e-6


class RMSNorm(nn.Module):
    """x / rms(x), times a gain; computed in float32 whatever the input."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = eps

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        if x.dtype is self.weight.dtype and x.dtype in (torch.float32, torch.float64):
            return rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)  # the same in one operation
        return rms_normalise(x, self.variance_epsilon) * self.weight


def rms_normalise(x: Float[Tensor, "*axes width"], eps: float = WEIGHT_NORM_EPS) -> Float[Tensor, "*axes width"]:
    """x divided by the root of its mean square over the last axis; no gain."""
    # float64 stays float64: the tests compare with the written-out equations to 1e-10.
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def build_norm(config: Any) -> nn.Module:
    """The norm that a model's config asks for, over the residual stream."""
    # The composers use this module and the config knows the composers, so that its class cannot be named here.
    kind = nn.LayerNorm if config.norm_type == "layernorm" else RMSNorm
    return kind(config.hidden_size, eps=config.norm_eps)
