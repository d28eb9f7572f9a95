"""The `mistral` layout of transformers: as Llama's, without biases, and every layer may be local."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from dcinterp.checkpoints import llama_family as family
from dcinterp.checkpoints.tensor_files import CheckpointTensors
from dcinterp.model.config import DCFormerConfig

BY_DEFAULT = False
FIELDS = family.known_fields("mistral") | {"layer_types"}


def read_config(fields: dict[str, Any], tensors: CheckpointTensors) -> DCFormerConfig:
    """Our config for a folder with these config.json fields."""
    theirs, ours = family.read_shared("mistral", fields, tensors)
    if getattr(theirs, "layer_types", None):
        family.refuse(tensors, "layer_types", "windows by layer in this family, nor does transformers")
    return DCFormerConfig(attention_windows=(theirs.sliding_window,), **ours)


def to_ours(name: str, tensor: Tensor, config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(our name, tensor) of what the foreign tensor holds."""
    return family.tensor_to_ours(name, tensor, config)


def write_config(config: DCFormerConfig) -> dict[str, Any]:
    """The config.json fields of the layout.

    Raises:
        UserError: it has no place for something in `config`.
    """
    window = config.window(0)
    same = tuple(config.attention_windows)[:1] * len(config.attention_windows)
    needed = dict(use_qk_norm=False, has_qkv_bias=False, has_output_bias=False, has_mlp_bias=False)
    return family.write_shared("mistral", config, needed | dict(attention_windows=same), sliding_window=window)


def to_theirs(tensors: Mapping[str, Tensor], config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(foreign name, tensor) of a whole model."""
    return family.tensors_to_theirs(tensors, config)
