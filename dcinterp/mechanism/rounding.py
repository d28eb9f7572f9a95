"""When two tensors are the same but for rounding."""

from __future__ import annotations

import torch
from torch import Tensor

NOTABLE = 1e-3
ROUNDED = 16
"""Above this share of the largest entry, or so many times the rounding of the numbers, two tensors are not the same."""


def notable(rounding: float) -> float:
    """The share of the largest entry above which two tensors are not the same, by the rounding of their numbers."""
    return max(NOTABLE, ROUNDED * rounding)


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape are the same but for the rounding of their numbers; NaN is not."""
    share = notable(torch.finfo(other.dtype).eps)
    return bool((one - other).abs().max() <= share * other.abs().max().clamp(min=1e-6))
