"""The parts of a head that can be patched, their hooks, and a head's place in what a hook holds."""

from __future__ import annotations

from typing import Any

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.branches import BRANCHES, DYNAMIC_WEIGHTS

STANDARD = ("q", "k", "v", "pattern", "z")
GROUPED = ("k", "v")


def head_sites(bridge: Bridge) -> dict[str, str]:
    """The sites that every layer of a model has, and their hooks inside `blocks.{layer}.attn`."""
    sites = {name: f"hook_{name}" for name in STANDARD}
    for stage in stages_of(bridge):
        sites |= {f"{stage}.{name}": f"{stage}.hook_{branch.hook}" for name, branch in BRANCHES.items()}
        sites |= {f"{stage}.{weight}": f"{stage}.hook_{weight}" for weight in DYNAMIC_WEIGHTS}
    layers = range(bridge.cfg.n_layers)
    return {
        site: hook
        for site, hook in sites.items()
        if all(f"blocks.{layer}.attn.{hook}" in bridge.hook_dict for layer in layers)
    }


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
