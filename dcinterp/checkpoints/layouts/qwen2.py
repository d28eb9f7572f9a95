"""The `qwen2` layout of transformers (Qwen2 and Qwen2.5, dense): as Llama's, with biases of queries, keys, values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from dcinterp.checkpoints import llama_family as family
from dcinterp.checkpoints.tensor_files import CheckpointTensors
from dcinterp.model.config import DCFormerConfig

BY_DEFAULT = False
FIELDS = family.known_fields("qwen2")


def read_config(fields: dict[str, Any], tensors: CheckpointTensors) -> DCFormerConfig:
    """Our config for a folder with these config.json fields."""
    theirs, ours = family.read_shared("qwen2", fields, tensors)
    windows = family.windows_of(theirs, tensors)
    return DCFormerConfig(attention_bias=True, attention_output_bias=False, attention_windows=windows, **ours)


def to_ours(name: str, tensor: Tensor, config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(our name, tensor) of what the foreign tensor holds."""
    return family.tensor_to_ours(name, tensor, config)


def write_config(config: DCFormerConfig) -> dict[str, Any]:
    """The config.json fields of the layout.

    Raises:
        UserError: it has no place for something in `config`.
    """
    needed = dict(use_qk_norm=False, has_qkv_bias=True, has_output_bias=False, has_mlp_bias=False)
    return family.write_shared("qwen2", config, needed, **family.windows_to_theirs(config))


def to_theirs(tensors: Mapping[str, Tensor], config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(foreign name, tensor) of a whole model."""
    return family.tensors_to_theirs(tensors, config)
