"""Hook points at which an edit in place does what the same edit of a new tensor does.

TransformerLens's point hands out the tensor that the model computes. Where others read that tensor too, an edit in
place reaches them as well; and a norm tells an edit by a new tensor, so that one in place is lost. Its own tools edit
in place, such as the setters of `patching` where no gradients are taken.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components import (
    BlockBridge,
    GatedMLPBridge,
    NormalizationBridge,
)
from transformer_lens.model_bridge.generalized_components.attention import AttentionBridge

from dcinterp.bridge.compose import ComposeBridge
from dcinterp.model.compose.branch_table import DYNAMIC_WEIGHTS, TERMS
from dcinterp.support.errors import UserError

SHARED: tuple[tuple[type[Any], tuple[str, ...]], ...] = (
    (BlockBridge, ("hook_mlp_in", "ln1.hook_in", "ln2.hook_in")),
    (AttentionBridge, ("q.hook_in", "k.hook_in", "v.hook_in")),
    (GatedMLPBridge, ("gate.hook_in", "in.hook_in")),
)
"""Hook points of what others read too: the stream, the input of attention and that of the MLP."""

STEADY: tuple[tuple[type[Any], tuple[str, ...]], ...] = (
    (AttentionBridge, ("o.hook_in", "hook_out", "hook_pattern", "hook_attn_scores")),
    (GatedMLPBridge, ("out.hook_in", "hook_out")),
)
"""Hook points of ours whose tensor another shape would be broadcast to."""


class CopyingHookPoint(HookPoint):
    """A hook point whose listeners get a copy."""

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        listened = self._forward_hooks or self._forward_pre_hooks
        return super().__call__(x.clone() if listened else x, *args, **kwargs)


class SteadyHookPoint(HookPoint):
    """A hook point whose listeners keep shape and type; another shape would be broadcast over heads, ranks or
    positions."""

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = super().__call__(x, *args, **kwargs)
        if found is x:
            return found
        mixed = torch.is_autocast_enabled(x.device.type)  # where types change on the way, and are meant to
        if not isinstance(found, Tensor) or (found.dtype != x.dtype and not mixed):
            made = str(found.dtype).removeprefix("torch.") if isinstance(found, Tensor) else type(found).__name__
            raise UserError(
                f"A hook at {self.name} returned {made} in place of a tensor of {str(x.dtype).removeprefix('torch.')}; "
                "what it returns replaces the tensor, so give it the same type."
            )
        if found.shape != x.shape:
            raise UserError(
                f"A hook at {self.name} returned the shape {list(found.shape)} in place of {list(x.shape)}. What it "
                "returns replaces the tensor: give it the same shape, with zeros in place of what is to be left out."
            )
        return found


class SteadyCopyingHookPoint(SteadyHookPoint, CopyingHookPoint):
    """Both."""


class EditedHookPoint(HookPoint):
    """A hook point that returns another tensor where a listener has changed the one that it got."""

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self._forward_hooks:
            return super().__call__(x, *args, **kwargs)
        before = x.clone() if x.is_inference() else x._version  # inference tensors count no versions
        found = super().__call__(x, *args, **kwargs)
        if found is not x:
            return found
        edited = not x.equal(before) if isinstance(before, Tensor) else x._version != before
        return x.view_as(x) if edited else x


def take_edits_in_place(bridge: nn.Module) -> None:
    """Let the hook points of a bridge take edits in place, where TransformerLens's would lose or spread them."""
    for module in bridge.modules():
        for kind, names in SHARED:
            if isinstance(module, kind):
                for name in names:
                    if module.hook_aliases.get("hook_resid_mid") != name:  # else an edit there is one of the stream
                        _become(_found(module, name), CopyingHookPoint)
        if isinstance(module, ComposeBridge):
            for tap in DYNAMIC_WEIGHTS:  # views, some of which torch does not let anybody write to
                _become(getattr(module, f"hook_{tap}", None), SteadyCopyingHookPoint)
            for tap in ("in", "out", *TERMS):
                _become(getattr(module, f"hook_{tap}", None), SteadyHookPoint)
        if isinstance(module, NormalizationBridge):
            for name in ("hook_normalized", "hook_scale"):
                _become(getattr(module, name, None), EditedHookPoint)


def keep_shapes(bridge: nn.Module) -> None:
    """Let the hook points of a bridge of ours refuse what would be broadcast silently."""
    for module in bridge.modules():
        for kind, names in STEADY:
            for name in names if isinstance(module, kind) else ():
                _become(_found(module, name), SteadyHookPoint)


def _found(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def _become(hook: Any, kind: type[HookPoint]) -> None:
    if type(hook) is HookPoint:
        hook.__class__ = kind
