"""The structures that the kernel takes, field for field those of its source: every field is eight bytes.

`Arguments` is that of source/arguments.h. The other two are packed as plain numbers, because decoding has one for every
layer and token: `STEP` is that of source/step.h, `MAKING` that of source/weights.h.
"""

from __future__ import annotations

import ctypes
import struct

import torch
from torch import Tensor


class View(ctypes.Structure):
    """A [batch, head, pos, d_head] tensor: address and the strides of all axes but the last."""

    _fields_ = [("data", ctypes.c_void_p), *((axis, ctypes.c_long) for axis in ("batch", "head", "pos"))]

    @classmethod
    def of(cls, x: Tensor) -> View:
        return cls(x.data_ptr(), *x.stride()[:3])


class KeyWeight(ctypes.Structure):
    """A key-side weight [batch, key, rank, head] or [batch, key, head]: address and strides, no heads sharing one."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        *((axis, ctypes.c_long) for axis in ("batch", "key", "rank", "head", "shared", "part")),
    ]

    @classmethod
    def of(cls, w: Tensor | None) -> KeyWeight:
        if w is None:
            return cls()
        strides = w.stride() if w.dim() == 4 else (*w.stride()[:2], 0, w.stride(2))
        return cls(w.data_ptr(), *strides, 1, 0)


WEIGHTS = ("w_q1", "w_q2", "w_qg", "static", "w_k1", "w_k2", "w_kg")


class Stage(ctypes.Structure):
    """One Compose: its weights, where their gradients go, and its flags."""

    _fields_ = [
        *((name, KeyWeight if name.startswith("w_k") else ctypes.c_void_p) for name in WEIGHTS),
        *((f"d_{name}", ctypes.c_void_p) for name in WEIGHTS),
        *((name, ctypes.c_long) for name in ("rank", "groups", "skip", "present")),
    ]


class Arguments(ctypes.Structure):
    """Everything about one call; `double scale` is the only field that is neither an integer nor an address."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("batch", "heads", "kv_heads", "queries", "keys", "width")),
        *((name, ctypes.c_long) for name in ("causal", "window", "mask_stride", "threads", "rows", "block")),
        ("scale", ctypes.c_double),
        ("mask", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("strange", ctypes.c_void_p),
        *((name, View) for name in ("q", "k", "v", "out", "d_out", "d_q", "d_k", "d_v")),
        ("pre", Stage),
        ("post", Stage),
    ]


SIDES = 4
"""A query and a key side of two stages."""

STEP = struct.Struct("66q")
MAKING = struct.Struct(f"{9 + 8 * SIDES}q")


def address(x: Tensor | None) -> int | None:
    """Where a contiguous tensor starts."""
    assert x is None or x.is_contiguous()
    return None if x is None else x.data_ptr()


def row_major(x: Tensor, multiple: int) -> Tensor:
    """`x` with a last axis that is contiguous and, by zeros, a multiple of the machine's vector."""
    extra = -x.shape[-1] % multiple
    if extra:
        return torch.nn.functional.pad(x, (0, extra))
    return x if x.stride(-1) == 1 else x.contiguous()
