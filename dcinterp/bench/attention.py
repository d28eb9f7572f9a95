"""Composed attention against plain attention: the fused kernel, the portable path, the released loops, the equation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dcinterp.bench.released_loops import looped_attention
from dcinterp.bench.timing import Measurement, race
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels import composed_attention, fused
from dcinterp.support.progress import Progress, silent

BASELINE = "plain attention (SDPA)"
QUADRATIC_LIMIT = 1 << 25
"""Numbers in the attention matrix above which candidates that hold a dozen or more of them are left out."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one measurement."""

    batch: int
    tokens: int
    heads: int
    d_head: int
    rank: int = 2

    def __str__(self) -> str:
        return f"B{self.batch} T{self.tokens} H{self.heads} d{self.d_head}"


SHAPES = (
    Shape(1, 1024, 16, 64),
    Shape(1, 512, 16, 64),
    Shape(16, 192, 8, 16),
    Shape(2, 777, 12, 48),
    Shape(4, 300, 6, 64),
    Shape(1, 2048, 32, 128),
)
LONG = Shape(1, 8192, 8, 16)
"""One layer of a small model over a long text: what counts is that memory stays linear."""


def measure(shape: Shape, *, backward: bool, rounds: int = 7, progress: Progress = silent) -> Measurement:
    """Race the implementations at one shape, float32, causal, on the CPU."""
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).requires_grad_(backward)

    q, k, v = (random(shape.batch, shape.heads, shape.tokens, shape.d_head) for _ in range(3))
    pre, post = (_weights(shape, random) for _ in range(2))

    def runner(attend: Callable[[], Tensor]) -> Callable[[], object]:
        def run() -> object:
            with torch.set_grad_enabled(backward):
                out = attend()
            if backward:
                out.backward(q.detach())
            return out

        return run

    def ours(name: str) -> Callable[[], object]:
        return runner(lambda: composed_attention(q, k, v, pre, post, causal=True, implementation=name))  # type: ignore[arg-type]

    candidates = {BASELINE: runner(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))}
    if fused.available():
        candidates["plain attention, fused"] = runner(
            lambda: composed_attention(q, k, v, causal=True, implementation="fused")
        )
        candidates["composed, fused"] = ours("fused")
    candidates["composed, portable"] = ours("chunked")
    if shape.batch * shape.heads * shape.tokens**2 <= QUADRATIC_LIMIT:
        candidates["composed, released loops"] = runner(lambda: looped_attention(q, k, v, pre, post))
        candidates["composed, as written"] = ours("eager")
    timings = race(candidates, BASELINE, rounds=rounds, progress=progress)
    return Measurement(str(shape), "forward+backward" if backward else "forward", torch.get_num_threads(), timings)


def _weights(shape: Shape, random: Callable[..., Tensor]) -> ComposeWeights:
    low = [random(shape.batch, shape.tokens, shape.rank, shape.heads) for _ in range(4)]
    gates = [random(shape.batch, shape.tokens, shape.heads) for _ in range(2)]
    return ComposeWeights(low[0], low[1], gates[0], low[2], low[3], gates[1])
