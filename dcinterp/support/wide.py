"""Float64 on every device."""

from __future__ import annotations

from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """The tensor in float64 where it is, or on the CPU where its device has no such numbers, as Metal."""
    return (x.cpu() if x.device.type == "mps" else x).double()
