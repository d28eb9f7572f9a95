"""The map over heads that composition is at one (query, key) pair, whole and by part.

    A'[head_to] = sum over head_from of A[head_from] * W[head_from, head_to]
    W = base (skip and W_b) + query low rank + query gate + key low rank + key gate

(equation of W_ij in section 2 of the DCMHA paper.) The parts depend on the two tokens only, not on the attention.

It does not show how much attention there was to lend: a large entry moves nothing where A is zero.

Identity that the tests assert: applying the map to A gives the model's composed attention.

    composition = dcinterp.composition_map(model, prompt, 1, "post", query=-1, key=7)
    composition.total            # [head_from, head_to]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.analysis.prompt import Prompt, layer_number, position, require_stage, str_tokens, token_ids
from dcinterp.analysis.registry import analysis
from dcinterp.analysis.result import Result
from dcinterp.shapes import HeadMap

PARTS = ("base", "query_low_rank", "query_gate", "key_low_rank", "key_gate")


@dataclass(frozen=True)
class CompositionMap(Result):
    """W and its parts, each [head_from, head_to]: head_from computed the attention, head_to uses it."""

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {name: ("head_from", "head_to") for name in ("total", *PARTS)}

    tokens: tuple[str, ...]
    layer: int
    stage: str
    query: int
    key: int
    total: Float[Tensor, "head_from head_to"]
    base: Float[Tensor, "head_from head_to"]
    query_low_rank: Float[Tensor, "head_from head_to"]
    query_gate: Float[Tensor, "head_from head_to"]
    key_low_rank: Float[Tensor, "head_from head_to"]
    key_gate: Float[Tensor, "head_from head_to"]

    @property
    def parts(self) -> dict[str, HeadMap]:
        """The parts by name; they add up to `total`."""
        return {name: getattr(self, name) for name in PARTS}


@analysis(title="Map over heads at one pair of positions", needs_composition=True)
def composition_map(bridge: Any, prompt: Prompt, layer: int, stage: str, query: int, key: int) -> CompositionMap:
    """The head-to-head map of one stage at one pair of positions, by part.

    Args:
        bridge: a bridge over a DCFormer.
        prompt: text or token ids.
        layer: the layer; negative counts from the last.
        stage: "pre" for scores, "post" for weights.
        query, key: the positions; negative ones count from the end.

    Cost: one forward pass that keeps one stage's dynamic weights.

    Raises:
        UserError: the model does not compose at that stage, or a position or layer does not exist.
    """
    require_stage(bridge, stage)
    ids = token_ids(bridge, prompt)
    layer = layer_number(bridge, layer)
    query, key = position(query, ids.shape[1], "Query"), position(key, ids.shape[1], "Key")
    prefix = f"blocks.{layer}.attn.{stage}.hook_w_"
    hooks = [name for name in bridge.hook_dict if name.startswith(prefix)]
    with torch.no_grad():
        # A static map has no dynamic weights to look at.
        cache = bridge.run_with_cache(ids, names_filter=hooks)[1] if hooks else {}
    at = {"q": query, "k": key}
    w = {
        name.removeprefix(prefix): tensor[0, at[name.removeprefix(prefix)[0]]].float().cpu()
        for name, tensor in cache.items()
    }
    heads, composer = bridge.cfg.n_heads, getattr(bridge.blocks[layer].attn, stage).original_component
    parts = {
        "base": _base(composer, heads),
        "query_low_rank": _low_rank(w, "q", heads, composer),
        "query_gate": torch.diag(w["qg"]) if "qg" in w else torch.zeros(heads, heads),
        "key_low_rank": _low_rank(w, "k", heads, composer),
        "key_gate": torch.diag(w["kg"]) if "kg" in w else torch.zeros(heads, heads),
    }
    return CompositionMap(
        tokens=str_tokens(bridge, ids),
        layer=layer,
        stage=stage,
        query=query,
        key=key,
        total=torch.stack(list(parts.values())).sum(0),
        **parts,
    )


def _base(composer: Any, heads: int) -> HeadMap:
    total = torch.eye(heads) if composer.skip else torch.zeros(heads, heads)
    if composer.static is not None:
        total = total + composer.static.head_map().detach().float().cpu()
    return total


def _low_rank(w: dict[str, Tensor], side: str, heads: int, composer: Any) -> HeadMap:
    if f"{side}1" not in w:
        return torch.zeros(heads, heads)
    groups = getattr(composer, "groups", 1)
    same_group = torch.block_diag(*torch.ones(groups, heads // groups, heads // groups))
    return (w[f"{side}1"].T @ w[f"{side}2"]) * same_group
