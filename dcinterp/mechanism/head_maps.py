"""The parts of a composition as [head_from, head_to] maps, from the dynamic weights that the hooks show."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.branches import BY_SIDE, PARTS
from dcinterp.model.compose.base import Composer
from dcinterp.model.compose.branches import low_rank_map
from dcinterp.shapes import HeadMap, TokenIds


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


def beyond_warnings(composer: str, stage: str) -> list[str]:
    """What a map over the heads of one pair leaves out; `composer`: the name of one that reads beyond it, else ""."""
    if not composer:
        return []
    return [
        f"The composer {composer!r} also takes something from other pairs of tokens or from the previous layer, so "
        "this map is not all of it: attention times the map is not the composed attention. `attribute_edges` with "
        f"stage={stage!r} scores it too."
    ]


def composer_of(bridge: Bridge, layer: int, stage: str) -> Composer:
    """The model's own composer of one stage, which says what it is made of (`dcinterp.model.compose.base`)."""
    return getattr(bridge.blocks[layer].attn, stage).original_component


def dynamic_weights(bridge: Bridge, ids: TokenIds, layer: int, stage: str) -> dict[str, Tensor]:
    """The dynamic weights of one stage at all positions, by name (w_q1, w_q2, w_qg, w_k1, ...), [pos, ...]; on the CPU.

    A static map has none.
    """
    prefix = f"blocks.{layer}.attn.{stage}.hook_"
    hooks = [name for name in bridge.hook_dict if name.startswith(f"{prefix}w_")]
    if not hooks:
        return {}
    with torch.no_grad():
        _, cache = bridge.run_with_cache(ids, names_filter=hooks)
    return {name.removeprefix(prefix): cache[name][0].float().cpu() for name in hooks}


def branch_map(weights: Sequence[Tensor], groups: int) -> Float[Tensor, "*pos head_from head_to"]:
    """The map of one branch from its dynamic weights: w_1 and w_2 [*pos, rank, head], or the gate [*pos, head]."""
    if len(weights) == 1:
        return torch.diag_embed(weights[0])
    w1, w2 = weights
    return low_rank_map(w1, w2, groups)


def position_maps(
    bridge: Bridge, ids: TokenIds, layer: int, stage: str
) -> dict[str, Float[Tensor, "pos head_from head_to"]]:
    """All parts but the base at every position: query parts by query position, key parts by key position.

    Zero where the model has no such branch. Memory: 4 * pos * heads^2 numbers.

    Raises:
        UserError: the composer does not keep the heads.
    """
    composer = composer_of(bridge, layer, stage)
    composer.require_square("A map over heads")
    w, maps = dynamic_weights(bridge, ids, layer, stage), {}
    for branch in BY_SIDE:
        weights = [w[name] for name in branch.weights if name in w]
        maps[branch.name] = torch.zeros(ids.shape[1], bridge.cfg.n_heads, bridge.cfg.n_heads)
        if len(weights) == len(branch.weights):
            maps[branch.name] = branch_map(weights, composer.groups)
    return maps
