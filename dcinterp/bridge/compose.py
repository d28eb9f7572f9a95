"""One stage of composition as a component of the bridge: a hook on every branch and dynamic weight."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

from dcinterp.model.compose.base import Composer
from dcinterp.model.compose.branch_table import DYNAMIC_WEIGHTS, TERMS
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels.fused.plain import anybody_listens
from dcinterp.shapes import Attention, PerHead, Residual

AFTER = ("read", "w_z")
"""Taps after attention, where a composition ends in a norm or a gate on what heads have read."""


class ComposeBridge(GeneralizedComponent):
    """One stage of composition with a HookPoint on every branch and dynamic weight that the model has."""

    def __init__(self, name: str, config: Any) -> None:
        super().__init__(name, config, optional=True)
        for tap in (*TERMS, *DYNAMIC_WEIGHTS, *AFTER):
            setattr(self, f"hook_{tap}", HookPoint())
        for tap in ("in", "out", *TERMS):
            # [batch, head, query, key]: a position slice means queries.
            getattr(self, f"hook_{tap}").pos_dim = -2

    def set_original_component(self, original_component: nn.Module) -> None:
        super().set_original_component(original_component)
        assert isinstance(original_component, Composer)
        for tap in sorted({*TERMS, *DYNAMIC_WEIGHTS, *AFTER} - original_component.existing()):
            del self._hook_registry[f"hook_{tap}"]
            delattr(self, f"hook_{tap}")

    def listening(self) -> bool:
        """Whether anybody, TransformerLens or plain torch, listens to a hook of this stage, or to the stage itself."""
        return anybody_listens((*self._hook_registry.values(), self, self.original_component))

    def forward(self, attention: Attention, weights: ComposeWeights, taps: Any = None) -> Attention:
        composer: Any = self.original_component
        return composer(attention, weights, taps=self if self.listening() else None)

    def read_out(self, z: PerHead, x_query: Residual) -> PerHead:
        """The end of the composition, with its taps where somebody listens."""
        composer: Any = self.original_component
        return composer.read_out(z, x_query, taps=self if self.listening() else None)
