"""The dynamic weights of all sides of a layer's stages at once: one matrix product, and C++ for what comes after it.

w_1, w_2 = chunk(gelu(X W_1) W_2);   w_1 <- rmsnorm over the heads of a group;   w_g = tanh(X W_g)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from dcinterp.model.kernels.fused.arguments import MAKING, SIDES
from dcinterp.model.kernels.fused.build import kernel_function
from dcinterp.model.kernels.fused.plain import SideMaps
from dcinterp.model.kernels.gradients import beyond_numbers, by_autograd

Made = list[tuple[Tensor | None, Tensor | None, Tensor | None]]
"""w_1, w_2 and w_g of every side; None where it has no projection, or no gate."""
Formula = Callable[[Tensor, Sequence[SideMaps]], Made]
"""The same by operations of PyTorch, for what must be differentiated twice."""


class Sizes(NamedTuple):
    """Those of a stage: heads, rank of the projections, and groups of heads."""

    heads: int
    rank: int
    groups: int


def dynamic_weights(x: Tensor, sides: Sequence[SideMaps], sizes: Sizes, formula: Formula) -> Made:
    """The weights of up to four sides that read the same input.

    Args:
        x: [batch, pos, d_model], not empty; `plain.nobody_looks` must hold for it.
        sides: with at least one projection or gate; `plain.side_fits` must hold for each.
        sizes: of all of them.
        formula: what this computes, for gradients of gradients.
    """
    flat = [each for maps in sides for each in maps]
    present = [each is not None for each in flat]
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (x, *flat)):
        out = iter(_Weights.apply(sizes, formula, x, *flat))
    else:
        out = iter(_forward(x, sides, sizes)[0])
    made = []
    for i in range(len(sides)):
        low, gate = present[3 * i], present[3 * i + 2]
        made.append((next(out) if low else None, next(out) if low else None, next(out) if gate else None))
    return made


def _sides(flat: Sequence[Tensor | None]) -> list[SideMaps]:
    return [SideMaps(*flat[i : i + 3]) for i in range(0, len(flat), 3)]


def _readers(sides: Sequence[SideMaps]) -> list[Tensor]:
    """The maps that read x, in the order of the kernel's columns."""
    return [each for maps in sides for each in (maps.down, maps.gate) if each is not None]


def _forward(x: Tensor, sides: Sequence[SideMaps], sizes: Sizes) -> tuple[list[Tensor], Tensor]:
    """The weights that there are, [batch, pos, ...], and x times all maps that read it, [batch * pos, column]."""
    read = linear(x.reshape(-1, x.shape[-1]), torch.cat(_readers(sides)))
    call, made = _Call(read, sides, sizes), []
    for maps in sides:
        low = [x.new_empty(*x.shape[:2], sizes.rank, sizes.heads) for _ in range(2) if maps.down is not None]
        gate = [x.new_empty(*x.shape[:2], sizes.heads) for _ in range(1) if maps.gate is not None]
        call.add(maps.up, [*(low or (None, None)), *(gate or (None,))])
        made += low + gate
    call.run("weights")
    return made, read


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sizes: Sizes, formula: Formula, x: Tensor, *flat: Tensor | None) -> tuple[Tensor, ...]:
        sides = _sides(flat)
        made, read = _forward(x, sides, sizes)
        ctx.sizes, ctx.formula = sizes, formula
        gates = [each for each in made if each.dim() == 3]
        ctx.save_for_backward(x, read, *flat, *gates)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, read, *rest = ctx.saved_tensors
        count = len(ctx.needs_input_grad) - 3
        flat, gates = rest[:count], rest[count:]
        if beyond_numbers(grads[0]):

            def make(held: Sequence[Any]) -> list[Tensor]:
                return [each for made in ctx.formula(held[0], _sides(held[1:])) for each in made if each is not None]

            return None, None, *by_autograd(make, (x, *flat), ctx.needs_input_grad[2:], grads)
        return None, None, *_backward(ctx, grads, x, read, _sides(flat), gates)


def _backward(
    ctx: Any, grads: Any, x: Tensor, read: Tensor, sides: Sequence[SideMaps], gates: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients of x and of every map."""
    given, made_gates = iter(grads), iter(gates)
    d_read = torch.empty_like(read)
    call, ups = _Call(read, sides, ctx.sizes, d_read), []
    for maps in sides:
        low = [next(given).contiguous() for _ in range(2)] if maps.down is not None else [None, None]
        gate = next(given).contiguous() if maps.gate is not None else None
        ups.append(None if maps.up is None else torch.empty_like(maps.up))
        made = (None, None, None if gate is None else next(made_gates))
        call.add(maps.up, made, [*low, gate], ups[-1])
    call.run("weights_back")
    needed, readers = ctx.needs_input_grad[2:], _readers(sides)
    d_x = (d_read @ torch.cat(readers)).view_as(x) if needed[0] else None
    if not any(needed[1:]):
        return [d_x, *(None for _ in needed[1:])]
    d_maps = iter((d_read.T @ x.reshape(-1, x.shape[-1])).split([len(each) for each in readers]))
    found: list[Tensor | None] = [d_x]
    for maps, d_up in zip(sides, ups, strict=True):
        d_down = None if maps.down is None else next(d_maps)
        found += [d_down, d_up, None if maps.gate is None else next(d_maps)]
    return found


class _Call:
    """The arguments of the kernel, and what must live while it runs."""

    def __init__(self, read: Tensor, sides: Sequence[SideMaps], sizes: Sizes, d_read: Tensor | None = None) -> None:
        rows, columns = read.shape
        self.dtype, self.held = read.dtype, [read, d_read]
        self.numbers = [rows, *sizes, torch.get_num_threads(), columns, len(sides)]
        self.numbers += [read.data_ptr(), 0 if d_read is None else d_read.data_ptr()]

    def add(
        self,
        up: Tensor | None,
        made: Sequence[Tensor | None],
        grads: Sequence[Tensor | None] = (None, None, None),
        d_up: Tensor | None = None,
    ) -> None:
        """One more side."""
        tensors = (up, *made, *grads, d_up)
        self.held += tensors
        self.numbers += [0 if each is None else each.data_ptr() for each in tensors]

    def run(self, way: str) -> None:
        missing = MAKING.size // 8 - len(self.numbers)
        assert 0 <= missing < 8 * SIDES
        kernel_function(way, self.dtype)(MAKING.pack(*self.numbers, *[0] * missing))
