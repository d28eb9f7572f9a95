"""One stage of composition as a component of the bridge: a hook on every branch and dynamic weight."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

from dcinterp.model.compose import BRANCHES, DYNAMIC_WEIGHTS, ComposeWeights, branches
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
        existing = existing_taps(original_component, self.config.d_model, self.config.n_heads)
        for tap in sorted({*BRANCHES, *DYNAMIC_WEIGHTS} - existing):
            del self._hook_registry[f"hook_{tap}"]
            delattr(self, f"hook_{tap}")

    def listening(self) -> bool:
        """Whether anybody, TransformerLens or plain torch, listens to a hook of this stage."""
        return anybody_listens(self._hook_registry.values())

    def forward(self, attention: Attention, weights: ComposeWeights, taps: Any = None) -> Attention:
        composer: Any = self.original_component
        return composer(attention, weights, taps=self if self.listening() else None)


@torch.no_grad()
def existing_taps(composer: Any, d_model: int, heads: int) -> set[str]:
    """Names of the branches and dynamic weights that a composing module computes, found by composing one pair."""
    one = next(composer.parameters(), torch.zeros(1))
    x = torch.zeros(1, 1, d_model, dtype=one.dtype, device=one.device)
    weights = composer.weights(x, x)
    terms = branches(x.new_zeros(1, heads, 1, 1), weights)
    return {*terms, *(name for name, _ in weights.dynamic())}


def anybody_listens(hooks: Iterable[nn.Module]) -> bool:
    """Whether any of the hooks has a listener, added by TransformerLens or by plain torch."""
    # HookPoint.has_hooks() does not know of listeners that other libraries add, and is slower.
    return any(h._forward_hooks or h._forward_pre_hooks or h._backward_hooks or h._backward_pre_hooks for h in hooks)
