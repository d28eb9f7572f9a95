"""Folding a norm's gain and bias into the maps that read its output, where TransformerLens does not know of them."""

from __future__ import annotations

import copy
import re

import torch
from torch import Tensor, nn

from dcinterp.model.compose.base import Composer
from dcinterp.support.errors import UserError

TOLERANCE = 1e-8
"""Of dynamic weights in float64, relative to the largest: what rounding may change, and no map that was forgotten."""


def composers_by_layer(model: nn.Module) -> list[tuple[int, Composer]]:
    """(layer, composer) of every stage of every layer, whether the model is wrapped or not."""
    found = [(re.search(r"layers\.(\d+)\.", name), module) for name, module in model.named_modules()]
    return [(int(place[1]), module) for place, module in found if place and isinstance(module, Composer)]


@torch.no_grad()
def check_folding(composer: Composer, gain: Tensor, bias: Tensor | None) -> None:
    """Fold a copy of a composer, and compare its weights on random inputs with those from before.

    Raises:
        UserError: they differ, because the composer reads its input through a map that it does not name as a reader.
    """
    trial = copy.deepcopy(composer).double()
    width = composer.config.hidden_size
    generator = torch.Generator().manual_seed(0)
    # Two inputs, so that a map of the query side does not pass for one of the key side.
    x_query, x_key = torch.randn(2, 1, 5, width, generator=generator, dtype=torch.float64).to(gain.device)
    gain, bias = gain.double(), None if bias is None else bias.double()
    heads, d_head = composer.config.num_attention_heads, composer.config.head_dim
    assert d_head is not None
    z = torch.randn(1, heads, 5, d_head, generator=generator, dtype=torch.float64).to(gain.device)
    normed = [gain * x if bias is None else gain * x + bias for x in (x_query, x_key)]
    before, written = trial.weights(*normed), trial.read_out(z, normed[0])
    fold_composer(trial, gain, bias)
    after = trial.weights(x_query, x_key)
    pairs = [(name, old, new) for (name, old), (_, new) in zip(before.dynamic(), after.dynamic(), strict=True)]
    pairs.append(("what heads write", written, trial.read_out(z, x_query)))
    for name, old, new in pairs:
        if not (old - new).abs().max() <= TOLERANCE * max(1.0, float(old.abs().max())):
            raise UserError(
                f"The gains of the norms cannot be folded into this model: its composer {composer.name!r} makes {name} "
                "from the layer's input by something that its `readers` does not name; call "
                "enable_compatibility_mode(fold_ln=False), or use the model as it is."
            )


def fold_composer(composer: Composer, gain: Tensor, bias: Tensor | None) -> None:
    """Make the weights that the composer makes of x what those of gain * x + bias were (`check_folding` says whether).

    Raises:
        UserError: one of its readers is no linear map.
    """
    readers = list(composer.readers())
    for reader in readers:
        if not isinstance(reader, nn.Linear):
            raise UserError(
                f"The gains of the norms cannot be folded into this model: its composer {composer.name!r} reads the "
                f"layer's input by a {type(reader).__name__}, which is no linear map; call "
                "enable_compatibility_mode(fold_ln=False), or use the model as it is."
            )
    for reader in dict.fromkeys(readers):  # a map that makes weights of both sides is folded once
        fold_norm(reader, gain, bias)


@torch.no_grad()
def fold_norm(linear: nn.Linear, gain: Tensor, bias: Tensor | None) -> None:
    """Make linear(x) what linear(gain * x + bias) was."""
    if bias is not None:
        shift = linear.weight @ bias.to(linear.weight)
        linear.bias = nn.Parameter(shift if linear.bias is None else linear.bias + shift)
    linear.weight *= gain.to(linear.weight)
