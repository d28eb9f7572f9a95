"""The tensors of the released layouts, which differ in two tables of names: of whole models, and of a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from dcinterp.checkpoints.released.attention import attention_to_ours, attention_to_theirs, require_trained_maps
from dcinterp.model.config import DCFormerConfig

Names = Mapping[str, str]
"""Foreign name -> our name; in a block, without the prefix of the layer."""


def tensor_to_ours(
    name: str, tensor: Tensor, config: DCFormerConfig, top: Names, block: Names
) -> Iterator[tuple[str, Tensor]]:
    """(our name, tensor) of what the foreign tensor holds; KeyError if the layout knows no such tensor."""
    if name in top:
        yield top[name], tensor
        return
    prefix, layer, part = name.split(".", 2)
    if prefix != "layers":
        raise KeyError(name)
    if part in block:
        yield f"model.layers.{layer}.{block[part]}", tensor
    elif part.startswith("attention."):
        for ours, value in attention_to_ours(part.removeprefix("attention."), tensor, config):
            yield f"model.layers.{layer}.self_attn.{ours}", value
    else:
        raise KeyError(name)


def tensors_to_theirs(
    tensors: Mapping[str, Tensor], config: DCFormerConfig, top: Names, block: Names
) -> Iterator[tuple[str, Tensor]]:
    """(foreign name, tensor) of a whole model."""
    require_trained_maps(tensors)
    yield from ((theirs, tensors[ours]) for theirs, ours in top.items())
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        yield from ((f"layers.{layer}.{theirs}", own[ours]) for theirs, ours in block.items() if ours in own)
        attention = {k.removeprefix("self_attn."): t for k, t in own.items() if k.startswith("self_attn.")}
        for name, tensor in attention_to_theirs(attention, config):
            yield f"layers.{layer}.attention.{name}", tensor
