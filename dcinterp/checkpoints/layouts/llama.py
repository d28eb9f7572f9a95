"""The `llama` layout of transformers: Llama 1 to 3, SmolLM2, TinyLlama and others; nothing in it is composed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from dcinterp.checkpoints import llama_family as family
from dcinterp.checkpoints.tensor_files import CheckpointTensors
from dcinterp.model.config import DCFormerConfig

BY_DEFAULT = False
FIELDS = family.known_fields("llama")


def read_config(fields: dict[str, Any], tensors: CheckpointTensors) -> DCFormerConfig:
    """Our config for a folder with these config.json fields."""
    theirs, ours = family.read_shared("llama", fields, tensors)
    return DCFormerConfig(attention_bias=theirs.attention_bias, mlp_bias=theirs.mlp_bias, **ours)


def to_ours(name: str, tensor: Tensor, config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(our name, tensor) of what the foreign tensor holds."""
    return family.tensor_to_ours(name, tensor, config)


def write_config(config: DCFormerConfig) -> dict[str, Any]:
    """The config.json fields of the layout.

    Raises:
        UserError: it has no place for something in `config`.
    """
    bias = config.has_qkv_bias
    all_global = (None,) * len(config.attention_windows)
    needed = dict(use_qk_norm=False, has_output_bias=bias, attention_windows=all_global)
    return family.write_shared("llama", config, needed, attention_bias=bias, mlp_bias=config.has_mlp_bias)


def to_theirs(tensors: Mapping[str, Tensor], config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(foreign name, tensor) of a whole model."""
    return family.tensors_to_theirs(tensors, config)
