"""One stage of composition as a component of the bridge: a hook on every branch and dynamic weight."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

from dcinterp.model.compose import BRANCHES, DYNAMIC_WEIGHTS, ComposeWeights
from dcinterp.shapes import Attention


class ComposeBridge(GeneralizedComponent):
    """One stage of composition with a HookPoint on every branch and dynamic weight that the model has."""

    def __init__(self, name: str, config: Any) -> None:
        super().__init__(name, config, optional=True)
        for tap in (*BRANCHES, *DYNAMIC_WEIGHTS):
            setattr(self, f"hook_{tap}", HookPoint())
        for tap in ("in", "out", *BRANCHES):
            # [batch, head, query, key]: a position slice means queries.
            getattr(self, f"hook_{tap}").pos_dim = -2

    def set_original_component(self, original_component: nn.Module) -> None:
        super().set_original_component(original_component)
        for tap in sorted({*BRANCHES, *DYNAMIC_WEIGHTS} - existing_taps(original_component)):
            del self._hook_registry[f"hook_{tap}"]
            delattr(self, f"hook_{tap}")

    def listening(self) -> bool:
        """Whether anybody, TransformerLens or plain torch, listens to a hook of this stage."""
        return anybody_listens(self._hook_registry.values())

    def forward(self, attention: Attention, weights: ComposeWeights, taps: Any = None) -> Attention:
        composer: Any = self.original_component
        return composer(attention, weights, taps=self if self.listening() else None)


def existing_taps(composer: nn.Module) -> set[str]:
    """Names of the branches and dynamic weights that a composing module computes."""
    taps = set()
    skip, static = getattr(composer, "skip", True), getattr(composer, "static", None)
    if skip or static is not None:
        taps.add("o_b")
    for side, letter in (("query", "q"), ("key", "k")):
        weights = getattr(composer, side, None)
        if hasattr(weights, "down"):
            taps |= {f"o_{letter}p", f"w_{letter}1", f"w_{letter}2"}
        if hasattr(weights, "gate"):
            taps |= {f"o_{letter}g", f"w_{letter}g"}
    return taps


def anybody_listens(hooks: Iterable[nn.Module]) -> bool:
    """Whether any of the hooks has a listener, added by TransformerLens or by plain torch."""
    # HookPoint.has_hooks() does not know of listeners that other libraries add, and is slower.
    return any(h._forward_hooks or h._forward_pre_hooks or h._backward_hooks or h._backward_pre_hooks for h in hooks)
