r"""A model made linear where it saturates, for its backward pass: two rules of RelP, and one of ours for the softmax.

    norm            x / rms(x)           rms(x) is held: a direction that fills the whole vector has a slope too
    softmax         J averaged over softmax(a s), a from 0 to 1: a saturated row has the slope that led there
    activation      gelu(x), silu(x)     a line through the origin, x (gelu(x) / x)

An activation that a model writes out (a tanh or sigmoid of its own, as in `gelu_new`) keeps its slope: a gate of the
composition is written so too. The forward pass is unchanged, to rounding. The products of Compose (attention and
dynamic weights), of attention with values, and of the gated MLP keep the product rule: half of it for each factor, as
LRP would have it, is the right share of a whole, but not the effect of removing one factor.

    with Linearised():
        value = metric(bridge(ids))
    torch.autograd.grad(value, ...)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

POINTS = 16
"""Of the average over a, which is smooth but where scores are large."""


class Linearised(TorchFunctionMode):
    """While it is active, what runs on this thread has the slopes above; with `on` false nothing changes."""

    def __init__(self, *, on: bool = True) -> None:
        super().__init__()
        self.on = on

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if not self.on or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if name in ("rsqrt", "sqrt"):
            return func(*args, **kwargs).detach()
        if name == "layer_norm":
            return _layer_norm(*args, **kwargs)
        if name == "rms_norm":
            return _rms_norm(*args, **kwargs)
        # [batch, head, query, key]: attention, and not the softmax of a gate.
        if name == "softmax" and args[0].dim() == 4:
            return _AverageSoftmax.apply(args[0])
        if name in ("gelu", "silu"):
            x, y = args[0], func(*args, **kwargs)
            slope = torch.where(x.abs() > 1e-6, y / torch.where(x.abs() > 1e-6, x, 1.0), 0.5)
            return x * slope.detach()
        return func(*args, **kwargs)


class _AverageSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(scores)
        return scores.softmax(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (scores,) = ctx.saved_tensors
        hidden = scores <= torch.finfo(scores.dtype).min / 2
        total = torch.zeros_like(scores)
        for point, weight in zip(*np.polynomial.legendre.leggauss(POINTS), strict=True):
            y = torch.where(hidden, scores, scores * (point + 1) / 2).softmax(-1)
            total += weight / 2 * y * (gradient - (gradient * y).sum(-1, keepdim=True))
        return total


def _rms_norm(x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    axes = tuple(range(-len(tuple(shape)), 0))
    least = torch.finfo(x.dtype).eps if eps is None else eps
    y = x * (x.pow(2).mean(axes, keepdim=True) + least).rsqrt().detach()
    return y if weight is None else y * weight


def _layer_norm(
    x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    y = _rms_norm(x - x.mean(tuple(range(-len(tuple(shape)), 0)), keepdim=True), shape, weight, eps)
    return y if bias is None else y + bias
