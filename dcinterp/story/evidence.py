"""What the story measures beside the analyses it strings together: every head at one entry, and one entry put back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

TAPS = {"before": "post.hook_in", "query_gate": "post.hook_o_qg", "key_gate": "post.hook_o_kg", "after": "hook_pattern"}


@dataclass(frozen=True)
class SourceAttention:
    """All heads' attention from the last position to one token: before and after composition, and what gates add."""

    before: Float[Tensor, "layer head"]
    after: Float[Tensor, "layer head"]
    query_gate: Float[Tensor, "layer head"]
    key_gate: Float[Tensor, "layer head"]


def source_attention(bridge: Any, ids: Tensor, key: int) -> SourceAttention:
    """The attention of every head of the model from the last position to `key`.

    Cost: one forward pass that keeps one number per head and tap.
    """
    layers, heads = bridge.cfg.n_layers, bridge.cfg.n_heads
    found: dict[str, dict[int, Tensor]] = {name: {} for name in TAPS}

    def keep(name: str, layer: int) -> Any:
        def hook(attention: Tensor, hook: Any) -> None:
            found[name][layer] = attention[0, :, -1, key].detach().float().cpu()

        return hook

    taps = [(f"blocks.{at}.attn.{tap}", keep(name, at)) for name, tap in TAPS.items() for at in range(layers)]
    with torch.no_grad():
        bridge.run_with_hooks(ids, fwd_hooks=[(name, hook) for name, hook in taps if name in bridge.hook_dict])
    # Heads that are not composed have no stage before; a model without gates adds nothing by them.
    instead = {"before": found["after"], "query_gate": {}, "key_gate": {}, "after": {}}
    return SourceAttention(
        **{
            name: torch.stack([rows.get(at, instead[name].get(at, torch.zeros(heads))) for at in range(layers)])
            for name, rows in found.items()
        }
    )


def lead(bridge: Any, ids: Tensor, target: int, foil: int, hooks: list[Any] | None = None) -> float:
    """The logit of the target minus that of the foil at the last position, under some hooks.

    Cost: one forward pass.
    """
    with torch.no_grad():
        logits = bridge.run_with_hooks(ids, fwd_hooks=hooks or [])[0, -1].float()
    return float(logits[target] - logits[foil])


def without_composition(layer: int, head: int, key: int, own: float) -> list[Any]:
    """Hooks that give one head its own attention back, from the last position to `key` alone."""

    def put_back(attention: Tensor, hook: Any) -> Tensor:
        attention = attention.clone()
        attention[0, head, -1, key] = own
        return attention

    return [(f"blocks.{layer}.attn.post.hook_out", put_back)]
