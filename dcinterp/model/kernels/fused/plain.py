"""When the C++ may stand in for operations of PyTorch: where nobody sees them, and nothing was put in between.

The kernel of attention is an operator of PyTorch, which transforms and tracers see. What makes the dynamic weights, and
a decoded token, goes without: the operations that these stand for are the definition, and run wherever somebody looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.utils.hooks import RemovableHandle

from dcinterp.model.kernels.gradients import transformed

KINDS = (Tensor, nn.Parameter)
REAL = {torch.float32: "float", torch.float64: "double"}
"""The precisions of the kernel, and how it calls them."""


class SideMaps(NamedTuple):
    """What one side of a stage is made with; None where it has no projection, or no gate.

    down [group * inner, d_model] and up [group, inner, inner], where inner is 2 * rank * head / group; gate
    [head, d_model].
    """

    down: Tensor | None = None
    up: Tensor | None = None
    gate: Tensor | None = None

    @property
    def empty(self) -> bool:
        """Whether it makes nothing."""
        return self.down is None and self.gate is None


class StageMaps(NamedTuple):
    """What a stage is made with; a side is None where the model has none. The rest is as in `ComposeWeights`."""

    query: SideMaps | None
    key: SideMaps | None
    heads: int
    rank: int
    groups: int
    skip: bool
    static: Tensor | None

    @property
    def channels(self) -> int:
        """How many numbers of a key and head a cache holds beside its value."""
        key = SideMaps() if self.key is None else self.key
        return 2 * self.rank * (key.down is not None) + (key.gate is not None)

    def numbers(self) -> tuple[int, ...]:
        """As the kernel takes them (source/step.h)."""
        places = [
            0 if each is None else each.data_ptr()
            for side in self[:2]
            for each in (SideMaps() if side is None else side)
        ]
        return 1, self.rank, self.groups, int(self.skip), 0 if self.static is None else self.static.data_ptr(), *places


def nobody_looks(x: Tensor) -> bool:
    """Whether `x` is a plain tensor on a CPU in one of the kernel's precisions, and no mode or tracer is at work."""
    return (
        not torch.compiler.is_compiling()
        and type(x) in KINDS
        and x.is_cpu
        and x.dtype in REAL
        and x.layout is torch.strided
        and not x.is_neg()
        and not traced()
        and not torch.is_autocast_enabled("cpu")
    )


def traced() -> bool:
    """Whether a mode, a tracer or a transform of torch sees, or changes, what operations do."""
    return (
        torch._C._len_torch_dispatch_stack() != 0
        or torch._C._len_torch_function_stack() != 0
        or torch._C._get_tracing_state() is not None
        or transformed()
    )


def as_written(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling `module` runs the `forward` of `kind` and nothing else: no subclass, no hook, no replacement."""
    return type(module) is kind and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def anybody_listens(modules: Iterable[nn.Module | None]) -> bool:
    """Whether any of the modules that there are has a hook, added by TransformerLens or by plain torch."""
    # HookPoint.has_hooks() does not know of listeners that other libraries add, and is slower.
    return any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
        for m in modules
        if m is not None
    )


class Watch:
    """Whether the parts of a module are still what they were when they were looked at: cheaper than to look again.

    It sees hooks, modules and parameters that are added, replaced or given other memory, and attributes that are added.
    A token asks for every stage of every layer, when the model's weights have driven all else out of the processor's
    cache: what counts is how little of the memory is touched. A copy of the module, or a saved one, has none.
    """

    def __init__(self, root: nn.Module, found: Any, given: Any) -> None:
        """`found` of the parts of `root`, and what it depends on beside them."""
        self.found, self.given = found, given
        self.parts = tuple(root.modules())
        self.kinds = tuple(map(type, self.parts))
        self.attributes = tuple((vars(part), len(vars(part))) for part in self.parts)
        self.named = tuple(
            (held, name, each)
            for part in self.parts
            for held in (part._modules, part._parameters)
            for name, each in held.items()
        )
        self.tensors = tuple(
            (each, each.data_ptr(), each.dtype) for _, _, each in self.named if isinstance(each, Tensor)
        )
        self.handles = RemovableHandle.next_id

    def still(self) -> bool:
        """Whether nothing has changed; parameters must have been contiguous."""
        if RemovableHandle.next_id != self.handles:  # somewhere, a hook was added
            if not all(as_written(part, kind) for part, kind in zip(self.parts, self.kinds, strict=True)):
                return False
            self.handles = RemovableHandle.next_id
        for held, name, each in self.named:
            if held.get(name) is not each:
                return False
        for own, count in self.attributes:
            if len(own) != count:
                return False
        for tensor, place, dtype in self.tensors:
            if tensor.data_ptr() != place or not tensor.is_contiguous() or tensor.dtype is not dtype:
                return False
        return True

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def no_global_hooks() -> bool:
    """Whether no hook listens to all modules, but those of `dcinterp.support.progress.only_interrupts`."""
    return not (
        modules._global_forward_hooks
        or modules._global_backward_hooks
        or modules._global_backward_pre_hooks
        or not all(hasattr(hook, "only_interrupts") for hook in modules._global_forward_pre_hooks.values())
    )


def fits(x: Tensor | None, shape: tuple[int, ...], like: Tensor) -> bool:
    """Whether `x` is a plain contiguous tensor of this shape, on a CPU and in the type of `like`, or None."""
    return x is None or (
        type(x) in KINDS and x.shape == shape and x.is_contiguous() and x.dtype is like.dtype and x.is_cpu
    )


def side_fits(maps: SideMaps, x: Tensor, heads: int, rank: int, groups: int) -> bool:
    """Whether the maps of a side have the shapes of a model with these heads, and the type of `x`."""
    inner, width = 2 * rank * heads // groups, x.shape[-1]
    return (
        (maps.down is None) == (maps.up is None)
        and fits(maps.down, (groups * inner, width), x)
        and fits(maps.up, (groups, inner, inner), x)
        and fits(maps.gate, (heads, width), x)
    )
