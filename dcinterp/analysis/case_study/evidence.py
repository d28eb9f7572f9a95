"""What the case study measures itself, beside the analyses that it combines.

    direct[l, h] = f(z) - f(z with z[l, h, last] = 0, every other head as it was)       the direct effect of a head
    shared[f]    = f(clean) - f(without what head f's attention adds to the followed head's)

f is the logit difference, logit[target] - logit[foil]. MLPs respond to both; later heads respond to the second only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.intervention_hooks import measure_effects
from dcinterp.mechanism.interventions import Intervention, checked
from dcinterp.mechanism.path_gradient import Metric
from dcinterp.mechanism.stream import Stream, metric_of
from dcinterp.shapes import TokenIds
from dcinterp.support.errors import UserError

BATCH = 64
"""Rows of one forward pass; bounds the memory."""

TAPS = {"before": "post.hook_in", "query_gate": "post.hook_o_qg", "key_gate": "post.hook_o_kg", "after": "hook_pattern"}


@dataclass(frozen=True)
class SourceAttention:
    """All heads' attention from the last position to one token: before and after composition, and what gates add."""

    before: Float[Tensor, "layer head"]
    after: Float[Tensor, "layer head"]
    query_gate: Float[Tensor, "layer head"]
    key_gate: Float[Tensor, "layer head"]


def source_attention(bridge: Bridge, ids: Tensor, key: int) -> SourceAttention:
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
    # Without composition there is no attention before it; without gates nothing is added by them.
    instead = {"before": found["after"], "query_gate": {}, "key_gate": {}, "after": {}}
    return SourceAttention(
        **{
            name: torch.stack([rows.get(at, instead[name].get(at, torch.zeros(heads))) for at in range(layers)])
            for name, rows in found.items()
        }
    )


def direct_effects(bridge: Bridge, ids: TokenIds, metric: Metric) -> Float[Tensor, "layer head"]:
    """The direct effect of every head on the metric.

    A head's output at the last position is set to zero while all other heads keep theirs, so that no later head passes
    the change on; what the MLPs make of it is included. (Path patching from the head to the logits, with zero.)

    Cost: one forward pass that keeps the heads' outputs, and layers x heads rows, each from about its layer on.
    """
    layers, heads = bridge.cfg.n_layers, bridge.cfg.n_heads
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(layers)]
    with torch.no_grad():
        cache = bridge.run_with_cache(ids, names_filter=names)[1]
    pairs = [(layer, head) for layer in range(layers) for head in range(heads)]
    effects, stream = [], Stream(bridge, ids)
    for start in range(0, len(pairs), BATCH):
        some = [None, *pairs[start : start + BATCH]]  # the first row is untouched

        def silence(z: Tensor, hook: Any, layer: int, some: list[Any] = some) -> Tensor:
            out = cache[names[layer]].expand_as(z).clone()
            for row, pair in enumerate(some):
                if pair is not None and pair[0] == layer:
                    out[row, -1, pair[1]] = 0
            return out

        lowest = pairs[start][0]  # the layers below it are as they were
        with torch.no_grad():
            hooks = [(name, partial(silence, layer=layer)) for layer, name in enumerate(names) if layer >= lowest]
            value = metric_of(stream, metric, len(some), hooks)
        effects.append(value[0] - value[1:])
    return torch.cat(effects).float().cpu().view(layers, heads)


@dataclass(frozen=True)
class SharingEffects:
    """By how much removing the attention that each other head shares with one head reduces the logit difference.

    here: at the last position and the source token only; everywhere: the whole edge, at all positions; by_branch: as
    `here`, for the head that shares most, through one projection. Zero for the head itself, and if there is no such
    edge.
    """

    here: Float[Tensor, " head_from"]
    everywhere: Float[Tensor, " head_from"]
    by_branch: dict[str, float]


def measure_sharing(
    bridge: Bridge, ids: TokenIds, metric: Metric, layer: int, head: int, key: int, head_from: int
) -> SharingEffects:
    """Remove what each head shares with `head`, one at a time, by `dcinterp.mechanism.interventions`.

    Cost: two rows of a forward pass for every other head, and one for each projection.
    """
    length = ids.shape[1]
    here = Intervention("edge", layer, "post", "added", head, query=-1, key=key)
    units: dict[Any, Intervention] = {}
    for other in range(bridge.cfg.n_heads):
        units["here", other] = replace(here, head_from=other)
        units["everywhere", other] = replace(here, head_from=other, query=None, key=None)
    for branch in ("qp", "kp"):
        units["by_branch", branch] = replace(here, head_from=head_from, name=branch)
    rows = {}
    for place, unit in units.items():
        if unit.head_from != head:
            try:
                rows[place] = checked(bridge, unit, length)
            except UserError:  # heads of different groups, or a model without that projection
                continue
    found: dict[Any, float] = {}
    if rows:
        effects = measure_effects(bridge, ids, list(rows.values()), metric, batch_size=BATCH).tolist()
        found = dict(zip(rows, effects, strict=True))

    def by_head(which: str) -> Tensor:
        return torch.tensor([found.get((which, other), 0.0) for other in range(bridge.cfg.n_heads)])

    by_branch = {branch: found[which, branch] for which, branch in found if which == "by_branch"}
    return SharingEffects(by_head("here"), by_head("everywhere"), by_branch)


def measure_logit_difference(bridge: Bridge, ids: TokenIds, metric: Metric, hooks: list[Any] | None = None) -> float:
    """The metric under some hooks.

    Cost: one forward pass.
    """
    with torch.no_grad():
        return float(metric(bridge.run_with_hooks(ids, fwd_hooks=hooks or []))[0])


def without_composition(layer: int, head: int, key: int, own: float) -> list[Any]:
    """Hooks that set one head's attention, from the last position to `key` only, to what it was before composition."""

    def put_back(attention: Tensor, hook: Any) -> Tensor:
        attention = attention.clone()
        attention[0, head, -1, key] = own
        return attention

    return [(f"blocks.{layer}.attn.post.hook_out", put_back)]


def uncomposed(layer: int) -> list[Any]:
    """Hooks that make all heads of a layer use only their own attention, at all positions."""
    own: dict[str, Tensor] = {}

    def keep(attention: Tensor, hook: Any) -> None:
        own["attention"] = attention

    def put_back(attention: Tensor, hook: Any) -> Tensor:
        return own["attention"]

    return [(f"blocks.{layer}.attn.post.hook_in", keep), (f"blocks.{layer}.attn.post.hook_out", put_back)]
