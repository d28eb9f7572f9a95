r"""How much memory an analysis needs, computed before it runs, and refused if it does not fit.

    matrices    hook_in, hook_out, hook_o_*, hook_attn_scores, hook_pattern   heads * pos^2 numbers each

beside which the dynamic weights (pos * rank * heads) and the outputs (pos * d_model) are nothing.

A layer whose hooks are listened to computes its matrices one by one and holds those of one stage at a time; other
layers take the model's fast path, which holds none. So one layer of a 6.9B-shaped model (32 heads) takes 8 matrices of
0.54 GB at 2048 positions in float32, 4.3 GB, whatever the number of layers.

    layer_bytes(heads=32, positions=2048)            # 4294967296
    kept = slices(bridge, ids, {"blocks.1.attn.post.hook_in": (0, slice(None), -1, 4)})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.shapes import TokenIds
from dcinterp.support.errors import UserError
from dcinterp.support.memory import free_bytes

MATRICES_OF_A_STAGE = 8
"""What one stage holds at its widest: its input, the sum so far, five branches and one intermediate."""

GIGABYTE = 1e9


def layer_bytes(heads: int, positions: int, *, bytes_per_number: int = 4, rows: int = 1) -> int:
    """Bytes that taking one stage of one layer apart needs beside the model: 8 * rows * heads * positions^2 numbers."""
    return MATRICES_OF_A_STAGE * rows * heads * positions**2 * bytes_per_number


def available_bytes(device: torch.device) -> int | None:
    """Free memory on the device of the model; None if the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_bytes()


def check_fits(bridge: Bridge, positions: int, *, what: str, rows: int = 1, stages: int = 1) -> int:
    """The memory that an analysis needs, refused before it runs if there is not enough.

    Args:
        bridge: any bridge.
        positions: tokens of the prompt.
        what: the work, to begin the sentence with.
        rows: rows of a batch.
        stages: stages that are taken apart at once.

    Raises:
        UserError: the estimate is above the free memory; the message names a length that fits.
    """
    parameter = next(bridge.original_model.parameters())
    heads = bridge.cfg.n_heads
    needed = stages * layer_bytes(heads, positions, bytes_per_number=parameter.element_size(), rows=rows)
    free = available_bytes(parameter.device)
    if free is not None and needed > free:
        fits = int((free / (needed / positions**2)) ** 0.5)
        raise UserError(
            f"{what} needs about {needed / GIGABYTE:.1f} GB beside the model for {positions} tokens, and "
            f"{free / GIGABYTE:.1f} GB are free; give at most {fits} tokens."
        )
    return needed


def slices(bridge: Bridge, ids: TokenIds, wanted: Mapping[str, Any]) -> dict[str, Tensor]:
    """One forward pass that keeps only a part of each hook's tensor.

    Args:
        bridge: any bridge.
        ids: the prompt, [1, pos].
        wanted: by hook name, the index of the part, batch axis first.

    Returns:
        The parts by hook name, copied, in float32 on the CPU. The whole tensors are freed as the pass goes on.
    """
    kept: dict[str, Tensor] = {}

    def keep(tensor: Tensor, hook: Any) -> None:
        kept[hook.name] = tensor[wanted[hook.name]].detach().float().cpu().clone()

    with torch.no_grad():
        bridge.run_with_hooks(ids, fwd_hooks=[(name, keep) for name in wanted])
        # Some bridges of other models make attention matrices only when a cache asks for them.
        if late := [name for name in wanted if name not in kept]:
            _, cache = bridge.run_with_cache(ids, names_filter=late)
            kept |= {name: cache[name][wanted[name]].float().cpu().clone() for name in late}
    return kept
