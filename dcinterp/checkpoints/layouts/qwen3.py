"""The `qwen3` layout of transformers (Qwen3, dense): as Llama's, with norms of queries and keys per head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from dcinterp.checkpoints import llama_family as family
from dcinterp.checkpoints.tensor_files import CheckpointTensors
from dcinterp.model.config import DCFormerConfig

BY_DEFAULT = False
FIELDS = family.known_fields("qwen3")


def read_config(fields: dict[str, Any], tensors: CheckpointTensors) -> DCFormerConfig:
    """Our config for a folder with these config.json fields."""
    theirs, ours = family.read_shared("qwen3", fields, tensors)
    ours |= dict(use_qk_norm=True, qk_norm_eps=theirs.rms_norm_eps, attention_bias=theirs.attention_bias)
    return DCFormerConfig(attention_windows=family.windows_of(theirs, tensors), **ours)


def to_ours(name: str, tensor: Tensor, config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(our name, tensor) of what the foreign tensor holds."""
    return family.tensor_to_ours(name, tensor, config)


def write_config(config: DCFormerConfig) -> dict[str, Any]:
    """The config.json fields of the layout.

    Raises:
        UserError: it has no place for something in `config`.
    """
    bias = config.has_qkv_bias
    needed = dict(use_qk_norm=True, qk_norm_eps=config.norm_eps, has_output_bias=bias, has_mlp_bias=False)
    return family.write_shared("qwen3", config, needed, attention_bias=bias, **family.windows_to_theirs(config))


def to_theirs(tensors: Mapping[str, Tensor], config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(foreign name, tensor) of a whole model."""
    return family.tensors_to_theirs(tensors, config)
