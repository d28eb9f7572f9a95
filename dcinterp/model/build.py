"""From a configuration to a model: freshly initialised, or only counted."""

from __future__ import annotations

from typing import Any

import torch

from dcinterp.model.config import DCFormerConfig, DCViTConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.vit import DCViTForImageClassification


def build_model(config: DCFormerConfig) -> Any:
    """A freshly initialised model of this configuration: a language model, or an image classifier."""
    if isinstance(config, DCViTConfig):
        return DCViTForImageClassification(config)
    return DCFormerForCausalLM(config)


def count_parameters(config: DCFormerConfig) -> int:
    """Number of parameters of a model of this configuration, without giving it memory.

    All layers are alike, so a model of one layer and one of two tell the size of any.
    """
    one, two = (_counted(type(config).from_dict(config.to_dict() | {"num_hidden_layers": n})) for n in (1, 2))
    return one + (config.num_hidden_layers - 1) * (two - one)


def _counted(config: DCFormerConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build_model(config).parameters())
