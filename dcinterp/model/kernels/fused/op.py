"""The kernel as one operator of PyTorch, `dcinterp::composed_attention`: what autograd, export and compile see of it.

It has a rule for shapes (a fake) and one for gradients, so that `torch.export` and `torch.compile(fullgraph=True)`
take it whole. On a CPU it runs the C++; on other devices, or without a compiler, the portable path.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels.fused.arguments import WEIGHTS, Arguments, KeyWeight, Stage, View, address, row_major
from dcinterp.model.kernels.fused.build import kernel_function, lanes, library
from dcinterp.model.kernels.gradients import beyond_numbers, by_autograd
from dcinterp.model.kernels.portable import (
    autograd_attention,
    chunked_attention,
    chunked_or_equation,
    equation_in_chunks,
)
from dcinterp.model.mask import Sight

NAMES = tuple(f"{stage}_{name}" for stage in ("pre", "post") for name in WEIGHTS)
"""How the operator calls its weights; each may be None, which autograd would not see through in a list."""

_LIBRARY = torch.library.Library("dcinterp", "DEF")
_LIBRARY.define(
    f"composed_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, {', '.join(f'Tensor? {name}' for name in NAMES)}, "
    "int[] how) -> (Tensor, Tensor)"
)
_LIBRARY.define(
    "composed_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor?[] weights, "
    "int[] how, Tensor sums) -> Tensor[]"
)

OF_KEYS = tuple(name.startswith("w_k") for name in WEIGHTS * 2)

DECODING = 4
"""So many queries, without gradients, go the way that reads keys where the cache holds them."""

Weights = list[Tensor | None]
"""In the order of `NAMES`."""


def available() -> bool:
    """Whether the kernel is built, or can be, on this machine (building takes some seconds, once)."""
    return library() is not None


available._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compile asks, and does not trace it


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
    weights = [w for stage in (pre, post) for w in _weights(stage)]
    tracked = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, *weights))
    how = [*_flags(pre), *_flags(post), int(causal), window or 0, int(tracked)]
    kernel = torch.ops.dcinterp.composed_attention
    if tracked or torch.compiler.is_compiling():
        out, _ = kernel(q, k, v, mask, *weights, how)
    else:
        with torch._C._AutoDispatchBelowAutograd():  # its rule is Python, which one decoded token would notice
            out, _ = kernel(q, k, v, mask, *weights, how)
    return out.transpose(1, 2)


def _weights(stage: ComposeWeights | None) -> Weights:
    return [None] * len(WEIGHTS) if stage is None else [getattr(stage, name) for name in WEIGHTS]


def _flags(stage: ComposeWeights | None) -> list[int]:
    return [0, 1, 1] if stage is None else [1, stage.groups, int(stage.skip)]


def _stages(weights: Sequence[Tensor | None], how: list[int]) -> list[ComposeWeights | None]:
    """What `_weights` and `_flags` were made from."""
    stages = []
    for flags, held in ((how[:3], weights[: len(WEIGHTS)]), (how[3:6], weights[len(WEIGHTS) :])):
        named: dict[str, Any] = dict(zip(WEIGHTS, held, strict=True))
        stages.append(ComposeWeights(**named, skip=bool(flags[2]), groups=flags[1]) if flags[0] else None)
    return stages


def _sight(how: list[int], mask: Tensor | None) -> Sight:
    return Sight(bool(how[6]), how[7] or None, mask)


def _tracked(how: list[int]) -> bool:
    """Whether there will be a way back."""
    return bool(how[8])


# -- the way forward ---------------------------------------------------------------------------------------------------


def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    """The C++. `rest` is the weights and `how`, the numbers that `fused_attention` makes of its other arguments.

    Returns:
        [batch, pos, head, d], no view of anything, so that a hook may change it in place; and the logarithms of the
        softmax's denominators, [batch, head, query], for the way back (empty where there is none).
    """
    if library() is None:
        return _portable_forward(q, k, v, mask, *rest)
    *weights, how = rest
    call = _Call(q, k, v, mask, weights, how)
    out, sums = _position_major(call.q), call.q.new_empty(call.q.shape[:3])
    call.arguments.lse, call.arguments.out = address(sums), View.of(out.transpose(1, 2))
    if call.run("forward" if _tracked(how) or q.shape[2] > DECODING else "decode"):
        out = _equation(call, mask, weights, how)
    elif out.shape[-1] != q.shape[-1]:
        out = out[..., : q.shape[-1]].contiguous()
    return out.to(q.dtype), sums if _tracked(how) else sums.new_empty(0)


@torch.no_grad()
def _equation(call: _Call, mask: Tensor | None, weights: Weights, how: list[int]) -> Tensor:
    wide = [None if w is None else w.to(call.wide) for w in weights]
    out = equation_in_chunks(*call.unpadded, *_stages(wide, how), sight=_sight(how, mask))
    return out.transpose(1, 2).contiguous()


@torch.no_grad()
def _portable_forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    """The same without the C++; the way back then needs no sums."""
    *weights, how = rest
    scan = q.device.type == "cpu"
    out = chunked_or_equation(q, k, v, *_stages(weights, how), sight=_sight(how, mask), scan=scan)
    return out.transpose(1, 2).contiguous(), _sums_like(q, how).zero_()


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    return _position_major(q), _sums_like(q, rest[-1])


def _sums_like(q: Tensor, how: list[int]) -> Tensor:
    return q.new_empty(q.shape[:3] if _tracked(how) else (0,), dtype=_wide(q.dtype))


# -- the way back ------------------------------------------------------------------------------------------------------


def _remember(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.how = inputs
    _, sums = output
    ctx.mark_non_differentiable(sums)
    ctx.save_for_backward(*tensors, sums)


def _gradients(ctx: Any, grad: Tensor, _: Tensor | None) -> Any:
    """Of all inputs, from that of [batch, pos, head, d]; differentiable where autograd asks for it."""
    q, k, v, mask, *weights, sums = ctx.saved_tensors
    inputs = q, k, v, *weights
    if beyond_numbers(grad):
        needed = [x is not None and x.requires_grad for x in inputs]
        found = iter(_portable_gradients(autograd_attention, grad, inputs, needed, ctx.how, mask))
    else:
        kernel = torch.ops.dcinterp.composed_attention_backward
        made = iter(kernel(grad, q, k, v, mask, weights, ctx.how, sums))
        found = iter([None if x is None else next(made) for x in inputs])
    return next(found), next(found), next(found), None, *found, None


def _portable_gradients(
    attend: Callable[..., Tensor],
    grad: Tensor,
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    how: list[int],
    mask: Tensor | None,
) -> list[Tensor | None]:
    """By autograd through a function of the portable path."""

    def run(held: Sequence[Any]) -> Tensor:
        return attend(*held[:3], *_stages(held[3:], how), sight=_sight(how, mask))

    return by_autograd(run, inputs, needed, grad.transpose(1, 2))


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, weights: Weights, how: list[int], sums: Tensor
) -> list[Tensor]:
    """The C++: gradients of q, k, v and of the weights that exist."""
    # A graph that was exported where nothing needed a gradient has kept no sums.
    if library() is None or not _tracked(how):
        return _portable_backward(grad, q, k, v, mask, weights, how, sums)
    call = _Call(q, k, v, mask, weights, how)
    d_out = row_major(grad.to(call.wide).transpose(1, 2), call.lanes)
    d_q, d_k, d_v = (_like_heads(x) for x in (call.q, call.k, call.v))
    a = call.arguments
    a.lse, a.d_out, a.d_q, a.d_k, a.d_v = address(sums), View.of(d_out), View.of(d_q), View.of(d_k), View.of(d_v)
    grads = []
    for stage, held in zip((a.pre, a.post), call.weights, strict=True):
        for name, weight in zip(WEIGHTS, held, strict=True):
            if weight is not None:
                fill = torch.zeros if name == "static" else torch.empty
                grads.append(fill(weight.shape, dtype=weight.dtype))
                setattr(stage, f"d_{name}", address(grads[-1]))
    call.run("backward")
    return _like_inputs([d_q, d_k, d_v, *grads], (q, k, v, *weights))


def _portable_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, weights: Weights, how: list[int], sums: Tensor
) -> list[Tensor]:
    """The same without the C++."""
    inputs = (q, k, v, *weights)
    found = _portable_gradients(chunked_attention, grad, inputs, [True] * len(inputs), how, mask)
    made = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True) if x is not None]
    return _like_inputs(made, inputs)


def _fake_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, weights: Weights, how: list[int], sums: Tensor
) -> list[Tensor]:
    return [*(_like_heads(x) for x in (q, k, v)), *(w.new_empty(w.shape) for w in weights if w is not None)]


def _like_inputs(grads: list[Tensor], inputs: Sequence[Tensor | None]) -> list[Tensor]:
    """In the types of the inputs, and laid out as `_fake_backward` says."""
    made = []
    for number, (grad, x) in enumerate(zip(grads, (x for x in inputs if x is not None), strict=True)):
        grad = grad.to(x.dtype)
        if number < 3:
            made.append(grad.transpose(1, 2)[..., : x.shape[-1]].contiguous().transpose(1, 2))
        else:
            made.append(grad.contiguous())
    return made


def _like_heads(x: Tensor) -> Tensor:
    """Empty, of shape [batch, head, pos, d] and position-major in memory: joining the heads then copies nothing."""
    return _position_major(x).transpose(1, 2)


def _position_major(x: Tensor) -> Tensor:
    batch, heads, length, width = x.shape
    return x.new_empty(batch, length, heads, width)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


class _Call:
    """Inputs in the layout that the kernel wants; holds them while it runs."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, weights: Weights, how: list[int]) -> None:
        self.wide = _wide(q.dtype)
        self.lanes = lanes(self.wide)
        wide = self.wide
        self.unpadded = q, k, v = q.to(wide), k.to(wide), v.to(wide)
        self.q, self.k, self.v = (row_major(x, self.lanes) for x in self.unpadded)
        held: Weights = []
        for w, of_key in zip(weights, OF_KEYS, strict=True):
            if w is not None:
                w = w if w.dtype is wide else w.to(wide)
                # The dispatcher resolves negated views (of `Tensor.imag`, say) for us, but not inside lists.
                w = w.resolve_neg() if w.is_neg() else w
                w = w if of_key else w.contiguous()
            held.append(w)
        self.weights = held[: len(WEIGHTS)], held[len(WEIGHTS) :]
        self.mask = None if mask is None else mask.contiguous()
        batch, heads, queries, width = self.q.shape
        a = self.arguments = Arguments(batch, heads, k.shape[1], queries, k.shape[2], width)
        a.pre, a.post = self._stage(how[:3], self.weights[0]), self._stage(how[3:6], self.weights[1])
        a.causal, a.window = how[6:8]
        if self.mask is not None:
            a.mask, a.mask_stride = self.mask.data_ptr(), 0 if self.mask.shape[0] == 1 else queries * k.shape[2]
        self.strange = ctypes.c_long(0)
        a.strange = ctypes.addressof(self.strange)
        a.threads, a.scale = torch.get_num_threads(), q.shape[-1] ** -0.5
        a.rows, a.block = tile(heads, queries, self.lanes)
        a.q, a.k, a.v = View.of(self.q), View.of(self.k), View.of(self.v)

    @staticmethod
    def _stage(flags: list[int], weights: Weights) -> Stage:
        stage = Stage()
        stage.present, stage.groups, stage.skip = flags
        for name, w, of_key in zip(WEIGHTS, weights, OF_KEYS, strict=False):
            if w is not None:
                setattr(stage, name, KeyWeight.of(w) if of_key else address(w))
                if w.dim() == 4:
                    stage.rank = w.shape[2]
        return stage

    def run(self, way: str) -> bool:
        """Run it, and say whether a way forward met NaN or infinity: where those go, the equation must say."""
        kernel_function(way, self.wide)(ctypes.byref(self.arguments))
        return bool(self.strange.value)


def tile(heads: int, queries: int, lanes: int) -> tuple[int, int]:
    """Queries of a tile and keys of a block: a block's scores should stay in the second-level cache.

    Short prompts get smaller tiles, so that threads have something to share.
    """
    rows = 24 if queries < 512 else 48
    block = 64 if queries <= DECODING else 128
    return min(rows, queries), max(block if heads <= 16 else block // 2, 2 * lanes)


for _name, _cpu, _elsewhere, _shapes in (
    ("composed_attention", _forward, _portable_forward, _fake_forward),
    ("composed_attention_backward", _backward, _portable_backward, _fake_backward),
):
    _LIBRARY.impl(_name, _cpu, "CPU")
    _LIBRARY.impl(_name, _elsewhere, "CompositeExplicitAutograd")
    torch.library.register_fake(f"dcinterp::{_name}", _shapes, lib=_LIBRARY)
torch.library.register_autograd("dcinterp::composed_attention", _gradients, setup_context=_remember, lib=_LIBRARY)
