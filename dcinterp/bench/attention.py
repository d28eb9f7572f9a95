"""Composed attention against plain attention: the fast path, the written-out equation, and PyTorch's own kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dcinterp.bench.timing import Timing, race
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels import composed_attention, reference_attention
from dcinterp.model.mask import attention_mask
from dcinterp.progress import Progress, silent

BASELINE = "plain attention (SDPA)"


@dataclass(frozen=True)
class Shape:
    """Sizes of one measurement."""

    batch: int
    tokens: int
    heads: int
    d_head: int
    rank: int = 2


SHAPES = (Shape(16, 32, 8, 16), Shape(16, 192, 8, 16), Shape(1, 512, 16, 64))


@dataclass(frozen=True)
class Measurement:
    """Timings of one shape, forward alone or with the backward pass."""

    shape: Shape
    backward: bool
    timings: tuple[Timing, ...]

    def record(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return asdict(self)


def measure(shape: Shape, *, backward: bool, rounds: int = 7, progress: Progress = silent) -> Measurement:
    """Race the implementations at one shape, float32, causal, on the CPU."""
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).requires_grad_(backward)

    q, k, v = (random(shape.batch, shape.heads, shape.tokens, shape.d_head) for _ in range(3))
    pre, post = (_weights(shape, random) for _ in range(2))
    slots = torch.arange(shape.tokens)
    mask = attention_mask(slots, slots)

    def runner(attend: Callable[[], Tensor]) -> Callable[[], object]:
        def run() -> object:
            with torch.set_grad_enabled(backward):
                out = attend()
            if backward:
                out.sum().backward()
            return out

        return run

    candidates = {
        BASELINE: runner(lambda: scaled_dot_product_attention(q, k, v, is_causal=True)),
        "composed, fast path": runner(lambda: composed_attention(q, k, v, pre, post, mask=mask)),
        "composed, as written": runner(lambda: reference_attention(q, k, v, pre, post, mask)),
    }
    return Measurement(shape, backward, tuple(race(candidates, BASELINE, rounds=rounds, progress=progress)))


def _weights(shape: Shape, random: Callable[..., Tensor]) -> ComposeWeights:
    low = [random(shape.batch, shape.tokens, shape.rank, shape.heads) for _ in range(4)]
    gates = [random(shape.batch, shape.tokens, shape.heads) for _ in range(2)]
    return ComposeWeights(low[0], low[1], gates[0], low[2], low[3], gates[1])
