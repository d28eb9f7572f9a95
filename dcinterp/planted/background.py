"""Real norms and random weights around a planted circuit, so that it stands in noise as it would in a trained model.

A planted model by itself has norms that do nothing and weights that are zero wherever the circuit needs none. Here

- the embedding gets a random part in the dead channels, `SIZE` times as long as what a word or a position writes, so
  that all tokens have about the same length, and the norms become real ones (epsilon 1e-6), with the gain that gives
  the circuit back what it wrote, on the average over prompts;
- every other matrix (queries, keys, values, outputs, dynamic weights of every stage, an MLP, the unembedding) gets a
  random part. At share 1 what it adds is of the size that the same activations have in the shipped model (`SHIPPED`).

The random part is not held off the channels of the circuit: it reads what the circuit writes, and writes over it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dcinterp.model.decoder import DCFormerForCausalLM

NORM_EPS = 1e-6
SIZE = 8.0
MLP_WIDTH = 4
"""Hidden units of the MLP for each channel of a head, times the heads' width: as wide as four times the stream."""

SHIPPED = {"q": 2.1, "k": 2.4, "v": 1.07, "z": 0.68, "attention": 1.4, "mlp": 0.16, "w_2": 0.05, "gate": 0.32}
"""Root mean squares in layer 1 of `dcformer++` on prompts of a task: of queries, keys, values, what heads read out, and
dynamic weights; what attention and MLP write is a share of the stream that enters the layer."""
LOGIT = 3.0
"""Of its unembedding: root mean square of a logit for a stream of that size 1."""
UNIT_GELU = 0.65
"""Root mean square of gelu(x) of a standard normal x."""


@torch.no_grad()
def add_background(model: DCFormerForCausalLM, share: float, seed: int, dead: Sequence[int], ids: torch.Tensor) -> None:
    """Give a planted model real norms, and random weights of `share` of the shipped model's sizes.

    Args:
        model: built with an MLP of width `MLP_WIDTH` times the stream's.
        share: 1 for the sizes of the shipped model; the circuits of most kinds are drowned long before.
        seed: of the random weights.
        dead: channels of the stream that the embedding may use.
        ids: prompts [batch, pos] that the norms are set on.
    """
    generator = torch.Generator().manual_seed(seed)
    width = model.config.hidden_size
    part = torch.randn(model.config.vocab_size, len(dead), generator=generator)
    embedding = model.model.embed_tokens.weight
    embedding[:, list(dead)] += (SIZE / part.norm(dim=-1, keepdim=True) * part).to(embedding)
    # A stream of token, position and the random part.
    length = math.sqrt(SIZE**2 + 2)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "embed" not in name:
            std = share * _spread(name, tuple(parameter.shape), length, width)
            parameter.add_(std * torch.randn(parameter.shape, generator=generator))
    _set_norms(model, ids)


def _spread(name: str, shape: tuple[int, ...], length: float, width: int) -> float:
    """Standard deviation of the random part of a matrix at share 1, for inputs of this length."""
    stream = length / math.sqrt(width)
    for letter in "qkv":
        if name.endswith(f"{letter}_proj.weight"):
            return SHIPPED[letter] / length
    if name.endswith("o_proj.weight"):
        return SHIPPED["attention"] * stream / (SHIPPED["z"] * math.sqrt(shape[1]))
    if name.endswith(".up"):
        return SHIPPED["w_2"] / (UNIT_GELU * math.sqrt(shape[1]))
    if name.endswith("gate.weight"):
        return SHIPPED["gate"] / length
    if name.endswith("down_proj.weight"):
        return SHIPPED["mlp"] * stream / (UNIT_GELU * math.sqrt(shape[1]))
    return (LOGIT if name.startswith("lm_head") else 1.0) / length


def _set_norms(model: DCFormerForCausalLM, ids: torch.Tensor) -> None:
    """Gains that give x back where it has its mean length, norm after norm: each changes what later ones see."""
    for name, module in model.named_modules():
        if name.endswith("norm"):
            norm: Any = module
            x = _input_of(model, norm, ids)
            norm.weight.fill_(float(x.norm(dim=-1).mean()) / math.sqrt(x.shape[-1]))


def _input_of(model: DCFormerForCausalLM, module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """What a module takes in when the model runs."""
    seen: list[torch.Tensor] = []

    def note(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append(inputs[0])

    handle = module.register_forward_pre_hook(note)
    model(ids)
    handle.remove()
    return seen[0]
