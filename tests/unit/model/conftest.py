"""Small models whose every parameter matters: weights far from their initial values, gains other than one."""

from collections.abc import Callable

import pytest
import torch

from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM

SMALL = dict(vocab_size=29, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4)


def small_config(preset: str = "tiny-dcformer++", **changes: object) -> DCFormerConfig:
    return DCFormerConfig.preset(preset, **(SMALL | {"max_position_embeddings": 40} | changes))


@torch.no_grad()
def stir(module: torch.nn.Module, seed: int = 0) -> None:
    """Random values for every parameter, large enough that a branch left out shows."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        fan_in = parameter.shape[-1] if parameter.dim() > 1 else 1
        gain = name.endswith("norm.weight")
        parameter.copy_(1 + 0.3 * noise if gain else noise * (1.0 if parameter.dim() > 1 else 0.3) / fan_in**0.5)


@pytest.fixture
def config() -> Callable[..., DCFormerConfig]:
    return small_config


@pytest.fixture
def model() -> Callable[..., DCFormerForCausalLM]:
    def build(
        preset: str = "tiny-dcformer++", dtype: torch.dtype = torch.float64, seed: int = 0, **changes: object
    ) -> DCFormerForCausalLM:
        built = DCFormerForCausalLM(small_config(preset, **changes)).to(dtype).eval()
        stir(built, seed)
        return built

    return build
