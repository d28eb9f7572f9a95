"""The parts of a composition as [head_from, head_to] maps, from the dynamic weights that the hooks show."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.shapes import HeadMap, TokenIds

PARTS = ("base", "query_low_rank", "query_gate", "key_low_rank", "key_gate")


class MapOfParts:
    """What a map over heads and a mean of such maps have in common: `total` with one field for each of `PARTS`.

    skip: whether the base holds the identity.
    """

    skip: bool
    total: HeadMap

    @property
    def parts(self) -> dict[str, HeadMap]:
        """The parts by name; they add up to `total`."""
        return {name: getattr(self, name) for name in PARTS}

    @property
    def added(self) -> HeadMap:
        """The map without the skip: what composition adds."""
        return self.total - torch.eye(len(self.total)) if self.skip else self.total


def composer_of(bridge: Bridge, layer: int, stage: str) -> Any:
    """The model's own composing module of one stage."""
    return getattr(bridge.blocks[layer].attn, stage).original_component


def base_map(composer: Any, heads: int) -> HeadMap:
    """What does not depend on the tokens: the skip and the static map W_b, in the type of its weights; on the CPU."""
    total = torch.eye(heads) if composer.skip else torch.zeros(heads, heads)
    if composer.static is not None:
        static = composer.static.head_map().detach().cpu()
        total = total.to(static) + static
    return total


def dynamic_weights(bridge: Bridge, ids: TokenIds, layer: int, stage: str) -> dict[str, Tensor]:
    """The dynamic weights of one stage at all positions, by name (q1, q2, qg, k1, ...), [pos, ...]; on the CPU.

    A static map has none.
    """
    prefix = f"blocks.{layer}.attn.{stage}.hook_w_"
    hooks = [name for name in bridge.hook_dict if name.startswith(prefix)]
    if not hooks:
        return {}
    with torch.no_grad():
        _, cache = bridge.run_with_cache(ids, names_filter=hooks)
    return {name.removeprefix(prefix): cache[name][0].float().cpu() for name in hooks}


def low_rank_maps(w: dict[str, Tensor], side: str, heads: int, groups: int) -> Float[Tensor, "pos head_from head_to"]:
    """sum_r w_1[r, from] w_2[r, to] at every position, inside groups of heads; [0, ...] where the model has none."""
    if f"{side}1" not in w:
        return torch.zeros(0, heads, heads)
    same_group = torch.block_diag(*torch.ones(groups, heads // groups, heads // groups))
    return torch.einsum("prf,prt->pft", w[f"{side}1"], w[f"{side}2"]) * same_group


def gate_maps(w: dict[str, Tensor], side: str, heads: int) -> Float[Tensor, "pos head_from head_to"]:
    """The gate of every position on the diagonal; [0, ...] where the model has none."""
    return torch.diag_embed(w[f"{side}g"]) if f"{side}g" in w else torch.zeros(0, heads, heads)


def position_maps(
    bridge: Bridge, ids: TokenIds, layer: int, stage: str
) -> dict[str, Float[Tensor, "pos head_from head_to"]]:
    """All parts but the base at every position: query parts by query position, key parts by key position.

    Memory: 4 * pos * heads^2 numbers.
    """
    heads, composer = bridge.cfg.n_heads, composer_of(bridge, layer, stage)
    groups = getattr(composer, "groups", 1)
    w = dynamic_weights(bridge, ids, layer, stage)
    empty = torch.zeros(ids.shape[1], heads, heads)
    made = {
        "query_low_rank": low_rank_maps(w, "q", heads, groups),
        "query_gate": gate_maps(w, "q", heads),
        "key_low_rank": low_rank_maps(w, "k", heads, groups),
        "key_gate": gate_maps(w, "k", heads),
    }
    return {name: maps if len(maps) else empty for name, maps in made.items()}
