"""The parts of a head that can be patched, their hooks, and a head's place in what a hook holds."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, alone, stages_of
from dcinterp.mechanism.branches import BRANCHES, DYNAMIC_WEIGHTS
from dcinterp.support.errors import UserError

STANDARD = ("q", "k", "v", "pattern", "z")
GROUPED = ("k", "v")


def head_sites(bridge: Bridge) -> dict[str, str]:
    """The sites that every layer of a model has and heads read, and their hooks inside `blocks.{layer}.attn`."""
    sites = {name: f"hook_{name}" for name in STANDARD}
    for stage in stages_of(bridge):
        sites |= {f"{stage}.{name}": f"{stage}.hook_{branch.hook}" for name, branch in BRANCHES.items()}
        sites |= {f"{stage}.{weight}": f"{stage}.hook_{weight}" for weight in DYNAMIC_WEIGHTS}
    layers = range(bridge.cfg.n_layers)
    return {
        site: hook
        for site, hook in sites.items()
        if all(f"blocks.{layer}.attn.{hook}" in bridge.hook_dict for layer in layers)
        and (site != "pattern" or pattern_acts(bridge))
    }


def require_sites(bridge: Bridge, sites: tuple[str, ...] | None) -> dict[str, str]:
    """The sites that were asked for, all without, and their hooks.

    Raises:
        UserError: there is none, or the model has no such site.
    """
    known = head_sites(bridge)
    chosen = tuple(known) if sites is None else sites
    for site in chosen:
        if site in known:
            continue
        if site == "pattern":
            raise UserError(
                "Patterns of this model cannot be patched: its hook_pattern shows the attention, and heads do not read "
                f"what is put there. Choose from {', '.join(known)}."
            )
        raise UserError(f"There is no site {site!r} to patch in this model; choose from {', '.join(known)}.")
    if not chosen:
        raise UserError(f"There is nothing to patch; choose from {', '.join(known)}.")
    return {site: known[site] for site in chosen}


@torch.no_grad()
def pattern_acts(bridge: Bridge) -> bool:
    """Whether heads read what a hook puts in the place of their pattern; tried on two tokens.

    In some architectures of others (OPT, GPT-J, GPT-Neo, XGLM) TransformerLens shows a copy.
    """
    if stages_of(bridge) or getattr(bridge.cfg, "is_visual_model", False) or vars(bridge).get("_pattern_acts"):
        return True
    attention = f"blocks.{bridge.cfg.n_layers - 1}.attn."
    seen: list[Tensor] = []
    ids = torch.zeros(1, 2, dtype=torch.long, device=next(bridge.original_model.parameters()).device)
    hooks = [
        (f"{attention}hook_pattern", lambda pattern, hook: torch.zeros_like(pattern)),
        (f"{attention}hook_z", lambda z, hook: seen.append(z.detach())),
    ]
    with alone(bridge), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the edit is discarded is what is asked here
        bridge.run_with_hooks(ids, fwd_hooks=hooks)
    # No is not kept: a hook of somebody's may be why.
    object.__setattr__(bridge, "_pattern_acts", bool((seen[0] == 0).all()))
    return bool(vars(bridge)["_pattern_acts"])


def read_values(bridge: Bridge, values: Tensor) -> Tensor:
    """What heads read of `hook_v`, which some models clip first (OLMo, MPT: `clip_qkv` of their config)."""
    config = getattr(bridge.original_model, "config", None)
    clips = (getattr(part, "clip_qkv", None) for part in (config, getattr(config, "attn_config", None)))
    clip = next((each for each in clips if each is not None), None)
    return values if clip is None else values.clamp(-clip, clip)


def head_index(bridge: Bridge, site: str, head: int, pos: int | None = None) -> tuple[Any, ...]:
    """A head's part of a row of the hook's tensor, at one position or at all."""
    at: Any = slice(None) if pos is None else pos
    if site in GROUPED:  # [pos, head of keys and values, d_head]
        shared = getattr(bridge.cfg, "n_key_value_heads", None) or bridge.cfg.n_heads
        return at, head * shared // bridge.cfg.n_heads
    if site in ("q", "z"):
        return at, head
    if site == "pattern" or site.split(".")[1] in BRANCHES:  # [head, query, key]
        return head, at
    return at, ..., head  # weights: [pos, rank, head] or [pos, head]
