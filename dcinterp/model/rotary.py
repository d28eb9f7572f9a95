"""Rotary positions: channel pairs turn by an angle proportional to the position."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.shapes import PerHead


class Rotation(NamedTuple):
    """cos and sin of the angles, ready to broadcast over heads."""

    cos: Float[Tensor, "batch 1 pos rotated"]
    sin: Float[Tensor, "batch 1 pos rotated"]


def rotation(positions: Int[Tensor, "batch pos"], width: int, base: float, dtype: torch.dtype) -> Rotation:
    """The rotation of the first `width` channels of a head at each position.

    Channel i of the first half pairs with channel i of the second half (LLaMA and GPT-NeoX order); its angle is
    position * base^(-2i/width). Angles are computed in float32 at least.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    exponent = torch.arange(0, width, 2, device=positions.device, dtype=wide) / width
    angle = positions[:, None, :, None].to(wide) * base**-exponent
    angle = torch.cat([angle, angle], dim=-1)
    return Rotation(angle.cos().to(dtype), angle.sin().to(dtype))


def rotate(x: PerHead, by: Rotation) -> PerHead:
    """`x` with its leading channels turned; channels beyond the rotation's width pass unchanged."""
    width = by.cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * by.cos + torch.cat([-second, first], dim=-1) * by.sin
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
