"""Where a model is put, and as which numbers."""

from __future__ import annotations

import torch

from dcinterp.support.errors import UserError
from dcinterp.support.text import shown


def number_type(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The type of numbers, also by its name in torch.

    Raises:
        UserError: weights cannot have it.
    """
    named = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(named, torch.dtype) and named.is_floating_point):
        raise UserError(
            f"dtype is {shown(dtype)}; give one of floating point numbers, such as torch.float32 or torch.bfloat16."
        )
    return named


def require_device(device: str | torch.device | None) -> None:
    """Raise a UserError if torch does not know the device, or this machine or this build of torch has none."""
    if device is None:
        return
    try:
        kind, number = torch.device(device).type, torch.device(device).index or 0
    except RuntimeError as error:
        raise UserError(f"There is no device {str(device)!r}; choose cpu, cuda or mps.") from error
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}.get(kind)
    if count is not None and number >= count:
        raise UserError(f"Torch finds no device {str(device)!r} on this machine; leave it out to use the CPU.")
