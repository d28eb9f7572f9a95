"""Folding a norm's gain and bias into the maps that read its output, where TransformerLens does not know of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dcinterp.bridge.compose import ComposeBridge
from dcinterp.model.config import STAGES


def dynamic_readers(attention: nn.Module) -> Iterator[nn.Linear]:
    """The linear maps that make dynamic weights from the layer's normed input."""
    stages = (getattr(attention, stage, None) for stage in STAGES)
    composers = (stage.original_component if isinstance(stage, ComposeBridge) else stage for stage in stages)
    for composer in filter(None, composers):
        for side in filter(None, (getattr(composer, "query", None), getattr(composer, "key", None))):
            yield from (getattr(side, name) for name in ("down", "gate") if hasattr(side, name))


@torch.no_grad()
def fold_norm(linear: nn.Linear, gain: Tensor, bias: Tensor | None) -> None:
    """Make linear(x) what linear(gain * x + bias) was."""
    if bias is not None:
        shift = linear.weight @ bias.to(linear.weight)
        linear.bias = nn.Parameter(shift if linear.bias is None else linear.bias + shift)
    linear.weight *= gain.to(linear.weight)
