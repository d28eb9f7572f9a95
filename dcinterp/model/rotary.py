"""Rotary positions: channel pairs turn by an angle proportional to the position.

Pair i of `width` channels turns by position * f_i with f_i = base^(-2i / width). For texts longer than those of
training the f_i can be changed once and for all (`rotary_scaling` of the config; the names are those of transformers):

    linear    f / factor
    llama3    f / factor for wavelengths 2 pi / f beyond original / low_freq_factor, f for those below
              original / high_freq_factor, and in between a mean weighted linearly in the number of turns
    yarn      the same with bounds beta_slow and beta_fast on the turns within `original`, the weights linear in the
              index of the pair (arXiv:2309.00071, section 3.2), and cos and sin times attention_factor
    dynamic   f, for it changes nothing within the context that the model was trained with, which is all that fits

where `original` is original_max_position_embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.model.kernels.fused.plain import traced
from dcinterp.shapes import PerHead
from dcinterp.support.errors import UserError
from dcinterp.support.text import shown

SCALINGS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "attention_factor", "beta_fast", "beta_slow", "truncate", "original_max_position_embeddings"),
    "dynamic": ("factor",),
}
"""Ways of scaling (`rope_type`), and the fields that each needs."""


class Rotation(NamedTuple):
    """cos and sin of the angles, ready to broadcast over heads."""

    cos: Float[Tensor, "batch 1 pos rotated"]
    sin: Float[Tensor, "batch 1 pos rotated"]


def rotation(
    positions: Int[Tensor, "batch pos"],
    width: int,
    base: float,
    dtype: torch.dtype,
    scaling: Mapping[str, Any] | None = None,
) -> Rotation:
    """The rotation of the first `width` channels of a head at each position.

    Channel i of the first half pairs with channel i of the second half (LLaMA and GPT-NeoX order). Angles are computed
    in float32 at least.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    speed = _speeds(positions.device, width, base, wide)
    size = 1.0
    if scaling is not None:
        speed = scaled(speed, base, scaling)
        size = scaling.get("attention_factor", 1.0)
    angle = positions[:, None, :, None].to(wide) * speed
    angle = torch.cat([angle, angle], dim=-1)
    cos, sin = angle.cos(), angle.sin()
    if size != 1.0:
        cos, sin = cos * size, sin * size
    return Rotation(cos.to(dtype), sin.to(dtype))


def _speeds(device: torch.device, width: int, base: float, dtype: torch.dtype) -> Float[Tensor, " pair"]:
    """The angles per position, kept from one token to the next; anew where a tracer or a mode of torch looks."""
    if torch.compiler.is_compiling() or device.type != "cpu" or traced():
        return _computed(device, width, base, dtype)
    return _kept(device, width, base, dtype)


def _computed(device: torch.device, width: int, base: float, dtype: torch.dtype) -> Float[Tensor, " pair"]:
    return 1.0 / base ** (torch.arange(0, width, 2, device=device, dtype=dtype) / width)


@lru_cache(maxsize=64)
def _kept(device: torch.device, width: int, base: float, dtype: torch.dtype) -> Float[Tensor, " pair"]:
    with torch.inference_mode(False):  # or autograd would refuse it later
        return _computed(device, width, base, dtype)


def scaled(speed: Float[Tensor, " pair"], base: float, scaling: Mapping[str, Any]) -> Float[Tensor, " pair"]:
    """The angles per position, changed as `scaling` says."""
    kind, factor = scaling["rope_type"], scaling["factor"]
    if kind == "dynamic":
        return speed
    if kind == "linear":
        return speed / factor
    pairs, original = len(speed), scaling["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = original * speed / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
    else:
        first, last = (_pair_of(float(scaling[end]), 2 * pairs, base, original) for end in ("beta_fast", "beta_slow"))
        if scaling["truncate"]:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        index = torch.arange(pairs, device=speed.device, dtype=speed.dtype)
        kept = 1 - ((index - first) / (last - first or 0.001)).clamp(0, 1)
    return speed * kept + speed / factor * (1 - kept)


def _pair_of(turns: float, width: int, base: float, original: int) -> float:
    """The (fractional) pair of channels that turns so many times within the original context."""
    return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))


def check_scaling(scaling: Any, base: float = math.inf) -> None:
    """Raises:
    UserError: `scaling` is no way of scaling rotary positions that this decoder computes; the message names the field.
    """
    if scaling is None:
        return
    kind = scaling.get("rope_type") if isinstance(scaling, Mapping) else None
    if kind not in SCALINGS:
        raise UserError(
            f"rotary_scaling has rope_type {kind!r}; this decoder scales rotary positions by {', '.join(SCALINGS)}, or "
            "not at all (None)."
        )
    wrong = [*(set(SCALINGS[kind]) - set(scaling)), *(set(scaling) - {"rope_type", *SCALINGS[kind]})]
    if wrong:
        raise UserError(
            f"rotary_scaling of rope_type {kind!r} has or lacks {sorted(wrong)[0]!r}; its fields are "
            f"{', '.join(SCALINGS[kind])}."
        )
    for field, value in scaling.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
        if field != "rope_type" and not (isinstance(value, bool) if field == "truncate" else number):
            raise UserError(f"rotary_scaling has {field} = {shown(value)}; it must be a number above 0.")
    if kind == "yarn" and base <= 1:
        raise UserError(f"rotary_base is {base:g}, and yarn stretches angles by its logarithm; give one above 1.")


def rotate(x: PerHead, by: Rotation) -> PerHead:
    """`x` with its leading channels turned; channels beyond the rotation's width pass unchanged."""
    width = by.cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * by.cos + torch.cat([-second, first], dim=-1) * by.sin
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
