"""Multi-head dense collaboration (MHDC): heads mix their scores with those of the layer before.

    A'_l[h', t, s] = sum over h of W[h, h'] A_l[h, t, s]  +  sum over h of V[h, h'] A'_(l-1)[h, t, s]

A_l are the scores of layer l, before the softmax; A'_(l-1) are those of the layer before as it composed them, so that
scores of all lower layers reach a head. The map leads from 2H heads to H; in the first layer, which has nobody before
it, from H to H. W is O_b; the second sum is one more term, O_prev, with a tap of its own, whose edges come from heads
of the layer before. At first W is the identity and V is zero: attention is plain.

The mechanism is that of "Improved Transformer with Multi-Head Dense Collaboration" (2022), in the form to which Table 1
of the DCMHA paper sums it up: static, of scores alone. No kernel knows the second sum: a model with it is computed as
the equation reads. While decoding nothing more is cached, since a step computes the new rows of every layer anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import initialization as init

from dcinterp.model.compose.base import ComposeConfig, Composer, Cost, Mechanism, Place
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.compose.static import StaticMap
from dcinterp.shapes import Attention, Residual
from dcinterp.support.errors import UserError


class LayerMap(StaticMap):
    """A map over heads, in groups, that is a multiple of the identity at first."""

    def __init__(self, config: ComposeConfig, share: float) -> None:
        super().__init__(config)
        self.share = share

    @torch.no_grad()
    def initialise(self) -> None:
        eye = torch.eye(self.weight.shape[-1]).to(self.weight)
        init.copy_(self.weight, (self.share * eye).expand_as(self.weight))


class DenseCollaboration(Composer):
    """One map of the layer's own scores, and from the second layer on one of the scores before them."""

    name: ClassVar[str] = "dense-collaboration"
    how: ClassVar[str] = "with those of the layer before"
    MECHANISM: ClassVar[Mechanism | None] = Mechanism(
        "multi-head dense collaboration (MHDC)",
        "A'[l] = A[l] W + A'[l-1] V of layer l, before the softmax",
        "learned, the same for all tokens; O_prev beside it leads from the heads of the layer before",
    )
    STAGES: ClassVar[tuple[str, ...]] = ("pre",)
    HANDS_ON: ClassVar[bool] = True

    def __init__(self, config: ComposeConfig) -> None:
        super().__init__(config)
        self.own = LayerMap(config, share=1.0)

    def place(self, place: Place) -> Composer:
        if place.layer:
            self.earlier = LayerMap(self.config, share=0.0)
        return super().place(place)

    @classmethod
    def check(cls, config: ComposeConfig) -> None:
        super().check(config)
        if len(set(config.attention_windows)) > 1:
            raise UserError(
                f"compose={cls.name!r} reads the scores of the layer before, which must see the same keys; give all "
                "layers one window."
            )

    def start_at_identity(self) -> None:
        """It does: all of the layer's own scores, and nothing of those before."""

    def weights(
        self, x_query: Float[Tensor, "batch query d_model"], x_key: Float[Tensor, "batch key d_model"]
    ) -> ComposeWeights:
        """Reads no token."""
        previous = self.earlier.head_map() if hasattr(self, "earlier") else None
        return ComposeWeights(
            static=self.own.head_map(), skip=False, groups=self.config.compose_groups, previous=previous
        )

    @classmethod
    def cost_at(cls, config: ComposeConfig, place: Place) -> Cost:
        """Every map is applied whole, with its zeros."""
        one, maps = StaticMap.cost(config), 2 if place.layer else 1
        return Cost(parameters=maps * one.parameters, per_pair=maps * one.per_pair)

    @classmethod
    def describe(cls, config: ComposeConfig) -> str:
        return "composed by a static map of its own and of the layer before"

    @classmethod
    def written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, attention: Attention
    ) -> Attention:
        out = torch.zeros_like(attention)
        StaticMap.add_written_out(out, attention, tensors["own.weight"])
        if "earlier.weight" in tensors:
            StaticMap.add_written_out(out, tensors["before"], tensors["earlier.weight"])
        return out
