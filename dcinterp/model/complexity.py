"""What composition costs: the formulas, and the same counted on a block of the model.

Every way of composing says it of itself (`Composer.cost`). For DCMHA, with D width, H heads, d = D/H, R rank, S keys
per query, per layer and for both stages, both sides:

    parameters   4 (2HR D + 4H^2R^2 + HD)               of 12 D^2        = (2R + 1 + 4R^2/d) / (3d)
    FLOPs        2 per parameter + S (16 HR + 8 H)       of 24 D^2 + 4 S D

and where G < H heads of keys and values are shared by the H of queries, or H heads of width d are not D wide together,
of 8 D^2 + 2 D (H + G) d parameters, and of twice that + 4 S H d FLOPs; what composition adds stays the same.

A pair of positions costs 4HR FLOPs for each low-rank branch (gather and share) and 2H for each gate. Embeddings are not
counted, nor is what all models do per score alike (mask, softmax).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dcinterp.model.compose.base import Place
from dcinterp.model.compose.registry import composer_class
from dcinterp.model.config import DCFormerConfig, DCViTConfig
from dcinterp.model.presets import Preset


@dataclass(frozen=True)
class Overhead:
    """Extra parameters and FLOPs of the composition, as fractions of what the block has without it."""

    parameters: float
    flops: float


def analytic_overhead(config: DCFormerConfig, keys: int) -> Overhead:
    """The formulas above, or what another way of composing says of itself, at `keys` keys per query.

    Raises:
        UserError: the way of composing does not say what it costs.
    """
    width, layers = config.hidden_size, config.num_hidden_layers
    places = [Place(layer, stage) for layer in range(layers) for stage in config.stages]
    costs = [composer_class(config.compose).cost_at(config, place) for place in places]
    extra = sum(cost.parameters for cost in costs) / layers
    flops = sum(cost.per_query + keys * cost.per_pair for cost in costs) / layers
    assert config.head_dim is not None
    assert config.num_key_value_heads is not None
    inner, shared = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    block = 8 * width**2 + 2 * width * (inner + shared)
    return Overhead(extra / block, flops / (2 * block + 4 * keys * inner))


def counted_overhead(config: DCFormerConfig, keys: int) -> Overhead:
    """The same, counted on a block on the meta device that runs branch by branch: no memory, no arithmetic."""
    from dcinterp.model.attention import HandedOn
    from dcinterp.model.block import Block

    parameters, flops = [], []
    for each in (config, config.without_composition()):
        # Layers are alike, unless they read each other's scores.
        hands_on = bool(each.stages) and composer_class(each.compose).HANDS_ON
        with torch.device("meta"):
            blocks = [Block(each, layer) for layer in range(each.num_hidden_layers if hands_on else 1)]
            x, handed = torch.empty(1, keys, config.hidden_size), HandedOn() if hands_on else None
            with CountFlops() as counted:
                for block in blocks:
                    attended, _ = block.self_attn(x, output_attentions=True, handed=handed)
                    block.mlp(attended)
        named = (pair for block in blocks for pair in block.named_parameters())
        parameters.append(sum(p.numel() for n, p in named if "norm" not in n) / len(blocks))
        flops.append(counted.total / len(blocks))
    return Overhead(parameters[0] / parameters[1] - 1, flops[0] / flops[1] - 1)


class CountFlops(TorchDispatchMode):
    """Counts two FLOPs for each multiplication in a matrix product, and for each product of two larger tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.by_operation: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return sum(self.by_operation.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in ("mm", "bmm"):
            self.by_operation[name] += 2 * out.numel() * args[0].shape[-1]
        elif name == "addmm":
            self.by_operation[name] += 2 * out.numel() * args[1].shape[-1]
        elif name == "convolution":
            self.by_operation[name] += 2 * out.numel() * args[1][0].numel()
        elif name == "mul" and isinstance(args[1], torch.Tensor) and args[0].dim() == args[1].dim() == out.dim():
            # A gate (four dimensions), or a product over a single rank or head, which einsum multiplies out (six): each
            # is a multiplication and an addition onto the sum of the branches.
            self.by_operation[name] += 2 * out.numel() if out.dim() in (4, 6) else 0
        return out


def overhead_records(presets: Iterable[Preset], keys: int | None = None) -> list[dict[str, Any]]:
    """Extra parameters and FLOPs of composed presets, as fractions, by formula and counted.

    Args:
        presets: those without composition are left out.
        keys: per query; each model's context (or number of patches) when None.
    """
    records = []
    for preset in presets:
        config = DCFormerConfig.preset(preset.name)
        if not config.stages:
            continue
        length = keys or (config.num_patches if isinstance(config, DCViTConfig) else config.max_position_embeddings)
        formula, counted = analytic_overhead(config, length), counted_overhead(config, length)
        records.append(
            {
                "preset": preset.name,
                "keys": length,
                "parameters": formula.parameters,
                "parameters_counted": counted.parameters,
                "flops": formula.flops,
                "flops_counted": counted.flops,
            }
        )
    return records


def overhead_rows(presets: Iterable[Preset], keys: int | None = None) -> list[tuple[str, ...]]:
    """The same as texts, in percent: (name, keys, parameters, counted, FLOPs, counted)."""
    return [
        (record["preset"], str(record["keys"]), *(f"{100 * share:.2f} %" for share in list(record.values())[2:]))
        for record in overhead_records(presets, keys)
    ]
