"""Composed attention, for anybody's model: it needs torch and jaxtyping, and imports nothing else of weight.

    from dcinterp.model.kernels import ComposeWeights, composed_attention

Each implementation is tested against the plain definition in `reference`.
"""

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels.reference import reference_attention
from dcinterp.model.kernels.select import composed_attention

__all__ = ["ComposeWeights", "composed_attention", "reference_attention"]
