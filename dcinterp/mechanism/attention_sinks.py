"""Attention that goes to no token: gpt-oss gives every head a sink beside its scores."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

# By more than this the sum of weights differs from 1; half precision rounds by less.
NOTABLE = 0.02


def sink_warnings(weights: Float[Tensor, "head *query key"]) -> list[str]:
    """What a reader has to know where heads keep a part of their attention for no token."""
    least = float(weights.sum(-1).amin())
    if least > 1 - NOTABLE:
        return []
    return [
        f"Weights of a head add up to {least:.2f} at the least: the rest goes to an attention sink, which is no "
        "token, and they are not the softmax of the scores alone."
    ]
