"""Gradients by autograd, for what the kernels' own ways back cannot do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def transformed() -> bool:
    """Whether vmap, a transform of torch.func, or forward-mode differentiation is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


# torch.compile asks it once, while it traces; it cannot trace it. As torch.compiler.assume_constant_result does, which
# would import the compiler here.
transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def beyond_numbers(grad: Tensor) -> bool:
    """Whether a way back gets more than numbers: it is to be differentiated once more, or has many gradients at once.

    Args:
        grad: one that a `backward` is given.
    """
    return torch.is_grad_enabled() or transformed() or torch._C._functorch.is_legacy_batchedtensor(grad)


def by_autograd(
    make: Callable[[list[Tensor | None]], Tensor | Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    grads: Tensor | Sequence[Tensor],
) -> list[Tensor | None]:
    """The gradients of a `backward`; they can be differentiated once more where gradients are recorded.

    Args:
        make: what the way forward gives, by operations that autograd knows.
        inputs: what it is made of; None for what is not there.
        needed: for each of these, whether its gradient is wanted.
        grads: of what `make` gives.
    """
    again = torch.is_grad_enabled()
    asked = [need and x is not None for x, need in zip(inputs, needed, strict=True)]
    with torch.enable_grad():
        # Views: an input may be made of another, or be given twice, and each gets what goes through its own place.
        held = [x.view_as(x) if ask and x is not None else x for x, ask in zip(inputs, asked, strict=True)]
        wanted = [x.requires_grad_() for x, ask in zip(held, asked, strict=True) if ask and x is not None]
        out = make(held)
        found = iter(torch.autograd.grad(out, wanted, grads, create_graph=again, allow_unused=True))
    return [next(found) if ask else None for ask in asked]
