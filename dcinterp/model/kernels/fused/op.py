"""The kernel as an operation of PyTorch: eager, under autograd, and opaque to torch.compile."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels.fused.arguments import WEIGHTS, Arguments, KeyWeight, Stage, View, address, row_major
from dcinterp.model.kernels.fused.build import library
from dcinterp.model.kernels.portable import chunked_attention, equation_in_chunks
from dcinterp.model.mask import Sight

_LIBRARY = torch.library.Library("dcinterp", "DEF")
_LIBRARY.define(
    "fused_forward(Tensor q, Tensor k, Tensor v, Tensor?[] weights, int[] how, Tensor? mask) -> (Tensor, Tensor)"
)
_LIBRARY.define(
    "fused_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor?[] weights, int[] how, Tensor? mask, Tensor lse)"
    " -> Tensor[]"
)

_LIBRARY.define("fused_decode(Tensor q, Tensor k, Tensor v, Tensor?[] weights, int[] how, Tensor? mask) -> Tensor")

DECODING = 4
"""So many queries, without gradients, go the way that reads keys where the cache holds them."""

Weights = list[Tensor | None]
"""Seven for the first stage (`WEIGHTS`), seven for the second; None where there is none."""


def available() -> bool:
    """Whether the kernel is built, or can be, on this machine (building takes some seconds, once)."""
    return library() is not None


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pre: ComposeWeights | None,
    post: ComposeWeights | None,
    *,
    causal: bool,
    window: int | None,
    mask: Tensor | None,
) -> Tensor:
    """What `reference_attention` computes; half precisions are widened to float32 inside, and the result narrowed."""
    dtype = q.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    # The dispatcher resolves negated views (of `Tensor.imag`, say) for us, but not inside lists.
    weights = [None if w is None else w.to(wide).resolve_neg() for stage in (pre, post) for w in _weights(stage)]
    how = [*_flags(pre), *_flags(post), int(causal), window or 0]
    inputs = q.to(wide), k.to(wide), v.to(wide)
    tracked = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*inputs, *weights))
    if q.shape[2] <= DECODING and not tracked:
        return torch.ops.dcinterp.fused_decode(*inputs, weights, how, mask).to(dtype)
    return _Fused.apply(*inputs, how, mask, *weights).transpose(1, 2).to(dtype)


def _weights(stage: ComposeWeights | None) -> Weights:
    return [None] * len(WEIGHTS) if stage is None else [getattr(stage, name) for name in WEIGHTS]


def _flags(stage: ComposeWeights | None) -> list[int]:
    return [0, 1, 1] if stage is None else [1, stage.groups, int(stage.skip)]


class _Fused(torch.autograd.Function):
    """Gives [batch, pos, head, d], no view of anything, so that a hook may change it in place."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, how: list[int], mask: Tensor | None, *weights: Any
    ) -> Tensor:
        out, lse = torch.ops.dcinterp.fused_forward(q, k, v, list(weights), how, mask)
        ctx.save_for_backward(q, k, v, mask, lse, *weights)
        ctx.how = how
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, mask, lse, *weights = ctx.saved_tensors
        grad = grad.transpose(1, 2)
        if torch.is_grad_enabled():
            return _differentiable_backward(grad, (q, k, v, *weights), ctx.how, mask)
        found = torch.ops.dcinterp.fused_backward(grad, q, k, v, weights, ctx.how, mask, lse)
        rest = iter(found[3:])
        return *found[:3], None, None, *(None if w is None else next(rest) for w in weights)


def _differentiable_backward(grad: Tensor, inputs: Any, how: list[int], mask: Tensor | None) -> Any:
    """Gradients that can be differentiated again: those of the portable path."""
    q, k, v, *weights = inputs
    out = chunked_attention(q, k, v, *_stages(weights, how), sight=_sight(how, mask))
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True, allow_unused=True))
    grads = [next(found) if x is not None and x.requires_grad else None for x in inputs]
    return *grads[:3], None, None, *grads[3:]


def _stages(weights: Weights, how: list[int]) -> list[ComposeWeights | None]:
    """What `_weights` and `_flags` were made from."""
    stages = []
    for flags, held in ((how[:3], weights[: len(WEIGHTS)]), (how[3:6], weights[len(WEIGHTS) :])):
        named: dict[str, Any] = dict(zip(WEIGHTS, held, strict=True))
        stages.append(ComposeWeights(**named, skip=bool(flags[2]), groups=flags[1]) if flags[0] else None)
    return stages


def _sight(how: list[int], mask: Tensor | None) -> Sight:
    return Sight(bool(how[6]), how[7] or None, mask)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, weights: Weights, how: list[int], mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    call = _Call(q, k, v, weights, how, mask)
    lse = q.new_empty(q.shape[:3])
    out, width = _position_major(call.q), v.shape[-1]
    call.arguments.lse, call.arguments.out = address(lse), View.of(out.transpose(1, 2))
    if call.run("forward"):
        return _equation(q, k, v, weights, how, mask), lse
    return out if out.shape[-1] == width else out[..., :width].contiguous(), lse


def _decode(q: Tensor, k: Tensor, v: Tensor, weights: Weights, how: list[int], mask: Tensor | None) -> Tensor:
    call = _Call(q, k, v, weights, how, mask)
    out = _like_heads(call.q)
    call.arguments.out = View.of(out)
    if call.run("decode"):
        return _equation(q, k, v, weights, how, mask).transpose(1, 2)
    return out[..., : v.shape[-1]]


@torch.no_grad()
def _equation(q: Tensor, k: Tensor, v: Tensor, weights: Weights, how: list[int], mask: Tensor | None) -> Tensor:
    out = equation_in_chunks(q, k, v, *_stages(weights, how), sight=_sight(how, mask))
    return out.transpose(1, 2).contiguous()


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, weights: Weights, how: list[int], mask: Tensor | None, lse: Tensor
) -> list[Tensor]:
    call = _Call(q, k, v, weights, how, mask)
    d_out = row_major(grad, call.lanes)
    d_q, d_k, d_v = (_like_heads(x) for x in (call.q, call.k, call.v))
    a = call.arguments
    a.lse, a.d_out, a.d_q, a.d_k, a.d_v = address(lse), View.of(d_out), View.of(d_q), View.of(d_k), View.of(d_v)
    grads = []
    for stage, held in zip((a.pre, a.post), call.weights, strict=True):
        for name, weight in zip(WEIGHTS, held, strict=True):
            if weight is not None:
                fill = torch.zeros if name == "static" else torch.empty
                grads.append(fill(weight.shape, dtype=weight.dtype))
                setattr(stage, f"d_{name}", address(grads[-1]))
    call.run("backward")
    return [*(x[..., : q.shape[-1]] for x in (d_q, d_k, d_v)), *grads]


def _like_heads(x: Tensor) -> Tensor:
    """Empty, of shape [batch, head, pos, d] and position-major in memory: joining the heads then copies nothing."""
    return _position_major(x).transpose(1, 2)


def _position_major(x: Tensor) -> Tensor:
    batch, heads, length, width = x.shape
    return x.new_empty(batch, length, heads, width)


class _Call:
    """Inputs in the layout that the kernel wants; holds them while it runs."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, weights: Weights, how: list[int], mask: Tensor | None) -> None:
        self.kernel = library()
        assert self.kernel is not None
        self.real = "float" if q.dtype == torch.float32 else "double"
        self.lanes = self.kernel.fused_lanes() * 4 // q.element_size()
        self.q, self.k, self.v = (row_major(x, self.lanes) for x in (q, k, v))
        held = [
            w if w is None or name.startswith("w_k") else w.contiguous()
            for name, w in zip(WEIGHTS * 2, weights, strict=True)
        ]
        self.weights = held[: len(WEIGHTS)], held[len(WEIGHTS) :]
        self.mask = None if mask is None else mask.contiguous()
        batch, heads, queries, width = self.q.shape
        a = self.arguments = Arguments(batch, heads, k.shape[1], queries, k.shape[2], width)
        a.pre, a.post = self._stage(how[:3], self.weights[0]), self._stage(how[3:6], self.weights[1])
        a.causal, a.window = how[6:]
        if self.mask is not None:
            a.mask, a.mask_stride = self.mask.data_ptr(), 0 if self.mask.shape[0] == 1 else queries * k.shape[2]
        self.strange = ctypes.c_long(0)
        a.strange = ctypes.addressof(self.strange)
        a.threads, a.scale = torch.get_num_threads(), q.shape[-1] ** -0.5
        a.rows, a.block = _tile(heads, queries, self.lanes)
        a.q, a.k, a.v = View.of(self.q), View.of(self.k), View.of(self.v)

    @staticmethod
    def _stage(flags: list[int], weights: Weights) -> Stage:
        present, groups, skip = flags
        by_name = dict(zip(WEIGHTS, weights, strict=True))
        rank = next((w.shape[2] for w in (by_name["w_q1"], by_name["w_k1"]) if w is not None), 0)
        stage = Stage(*(KeyWeight.of(w) if name.startswith("w_k") else address(w) for name, w in by_name.items()))
        stage.rank, stage.groups, stage.skip, stage.present = rank, groups, skip, present
        return stage

    def run(self, way: str) -> bool:
        """Run it, and say whether a way forward met NaN or infinity: where those go, the equation must say."""
        getattr(self.kernel, f"fused_{way}_{self.real}")(ctypes.byref(self.arguments))
        return bool(self.strange.value)


def _tile(heads: int, queries: int, lanes: int) -> tuple[int, int]:
    """Queries of a tile and keys of a block: the key-side weights of a block should stay in the first-level cache."""
    block = 64 if heads <= 16 else 32
    return min(24, queries), max(block, 2 * lanes)


_LIBRARY.impl("fused_forward", _forward, "CPU")
_LIBRARY.impl("fused_decode", _decode, "CPU")
_LIBRARY.impl("fused_backward", _backward, "CPU")


@torch.library.register_fake("dcinterp::fused_forward", lib=_LIBRARY)
def _(q: Tensor, k: Tensor, v: Tensor, weights: Weights, how: list[int], mask: Tensor | None) -> tuple[Tensor, Tensor]:
    return _position_major(q), q.new_empty(q.shape[:3])


@torch.library.register_fake("dcinterp::fused_decode", lib=_LIBRARY)
def _(q: Tensor, k: Tensor, v: Tensor, weights: Weights, how: list[int], mask: Tensor | None) -> Tensor:
    return _like_heads(q)


@torch.library.register_fake("dcinterp::fused_backward", lib=_LIBRARY)
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, weights: Weights, how: list[int], mask: Tensor | None, lse: Tensor
) -> list[Tensor]:
    return [*(_like_heads(x) for x in (q, k, v)), *(w.new_empty(w.shape) for w in weights if w is not None)]
