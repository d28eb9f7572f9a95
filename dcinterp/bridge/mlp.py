"""The gated MLP as a component of the bridge."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformer_lens.model_bridge.generalized_components import GatedMLPBridge


class DCGatedMLPBridge(GatedMLPBridge):
    """Gated MLP whose arithmetic stays in the model; TransformerLens's own, once weights are folded, has no groups."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        hidden_states, *rest = args
        mlp: Any = self.original_component
        return self.hook_out(mlp(self.hook_in(hidden_states), *rest, **kwargs))
