"""Implementations of composed attention; each is tested against the plain definition in `reference`."""

from dcinterp.model.kernels.reference import reference_attention
from dcinterp.model.kernels.select import composed_attention

__all__ = ["composed_attention", "reference_attention"]
