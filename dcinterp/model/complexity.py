"""What composition costs: the formulas, and the same counted on a block of the model.

With D width, H heads, d = D/H, R rank, S keys per query, per layer and for both stages, both sides:

    parameters   4 (2HR D + 4H^2R^2 + HD)               of 12 D^2        = (2R + 1 + 4R^2/d) / (3d)
    FLOPs        2 per parameter + S (16 HR + 8 H)       of 24 D^2 + 4 S D

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

from dcinterp.model.config import DCFormerConfig, DCViTConfig
from dcinterp.model.presets import Preset


@dataclass(frozen=True)
class Overhead:
    """Extra parameters and FLOPs of the composition, as fractions of what the block has without it."""

    parameters: float
    flops: float


def analytic_overhead(config: DCFormerConfig, keys: int) -> Overhead:
    """The formulas above, for a config with whatever branches it has, at `keys` keys per query."""
    width, heads = config.hidden_size, config.num_attention_heads
    size, rank = heads // config.compose_groups, config.compose_rank
    sides = config.compose_query_wise + config.compose_key_wise
    dynamic, stages = config.compose == "dynamic", len(config.stages)
    inner = 2 * size * rank
    per_side = per_pair = 0
    if dynamic and config.compose_projection:
        per_side += config.compose_groups * (inner * width + inner**2)
        per_pair += sides * 4 * heads * rank
    if dynamic and config.compose_gate:
        per_side += heads * width
        per_pair += sides * 2 * heads
    static = config.compose == "static" or (dynamic and config.compose_static)
    extra = stages * (sides * per_side + static * heads * size)
    flops = stages * (2 * sides * per_side + keys * (per_pair + static * 2 * heads * size))
    return Overhead(extra / (12 * width**2), flops / (24 * width**2 + 4 * keys * width))


def counted_overhead(config: DCFormerConfig, keys: int) -> Overhead:
    """The same, counted on a block on the meta device that runs branch by branch: no memory, no arithmetic."""
    from dcinterp.model.block import Block

    twin = type(config)(**(_fields(config) | {"compose": "none"}))
    parameters, flops = [], []
    for each in (config, twin):
        with torch.device("meta"):
            block = Block(each, 0)
            x = torch.empty(1, keys, config.hidden_size)
            with CountFlops() as counted:
                attended, _ = block.self_attn(x, output_attentions=True)
                block.mlp(attended)
        parameters.append(sum(p.numel() for n, p in block.named_parameters() if "norm" not in n))
        flops.append(counted.total)
    return Overhead(parameters[0] / parameters[1] - 1, flops[0] / flops[1] - 1)


def _fields(config: DCFormerConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in DCFormerConfig.__annotations__ if name != "model_type"} | (
        {name: getattr(config, name) for name in ("image_size", "patch_size", "num_channels")}
        if isinstance(config, DCViTConfig)
        else {}
    )


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
        elif name == "mul" and out.dim() == 4 and isinstance(args[1], torch.Tensor) and args[1].dim() == 4:
            self.by_operation[name] += 2 * out.numel()  # a gate: times the weight, onto the sum
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
