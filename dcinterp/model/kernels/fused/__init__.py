"""The fused CPU kernel: composed attention tile by tile in C++, forward and backward, memory linear in the length."""

from dcinterp.model.kernels.fused.op import available, fused_attention

__all__ = ["available", "fused_attention"]
