"""The map over heads that composition is, whole and by part: at one (query, key) pair, or the part that is static.

    A'[head_to] = sum over head_from of A[head_from] * W[head_from, head_to]
    W = base (skip and W_b) + qp and qg, of the query token (low rank, gate) + kp and kg, of the key token

(equation of W_ij in section 2 of the DCMHA paper.) The parts depend on the two tokens only, not on the attention; the
base depends on nothing. `motifs()` names the patterns that the paper points at (see dcinterp.mechanism.motifs).

It does not show how much attention there was to lend: a large entry moves nothing where A is zero.

Identity that the tests assert: applying the map to A gives the model's composed attention, where composition adds
nothing from other pairs of tokens or from the previous layer (multi-token attention, collaboration of layers).

    composition = dcinterp.composition_map(model, prompt, 1, "post", query=-1, key=7)
    composition.total            # [head_from, head_to]
    [motif.sentence for motif in composition.motifs()]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.branches import BRANCHES, FORMER_PARTS, PARTS, part_name
from dcinterp.mechanism.head_maps import MapOfParts, beyond_warnings, composer_of, position_maps
from dcinterp.mechanism.motifs import MANY, SHARE, Motif, find_motifs
from dcinterp.mechanism.prompt import (
    Prompt,
    layer_number,
    outside_window,
    pair_of,
    require_stage,
    str_tokens,
    token_ids,
)
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result

STATIC = -1
"""`query` and `key` of a map that belongs to no pair."""


@dataclass(frozen=True)
class CompositionMap(MapOfParts, Result):
    """W and its parts, each [head_from, head_to]: head_from computed the attention, head_to uses it.

    skip: whether the base holds the identity. A static map has no tokens, query and key -1, and only a base. beyond:
    the composer, if it takes something from other pairs or from the previous layer too; window: of a local layer.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {name: ("head_from", "head_to") for name in ("total", *PARTS)}
    FORMER: ClassVar[dict[str, str]] = FORMER_PARTS

    tokens: tuple[str, ...]
    layer: int
    stage: str
    query: int
    key: int
    skip: bool
    total: Float[Tensor, "head_from head_to"]
    base: Float[Tensor, "head_from head_to"]
    qp: Float[Tensor, "head_from head_to"]
    qg: Float[Tensor, "head_from head_to"]
    kp: Float[Tensor, "head_from head_to"]
    kg: Float[Tensor, "head_from head_to"]
    beyond: str = ""
    window: int | None = None

    def warnings(self) -> list[str]:
        said = beyond_warnings(self.beyond, self.stage)
        if hidden := outside_window(self.layer, self.window, self.query, self.key):
            said.append(f"{hidden}: there is no attention for this map to act on.")
        return said

    def motifs(self, part: str = "total", *, share: float = SHARE, many: int = MANY) -> tuple[Motif, ...]:
        """The motifs of the map without its skip, or of one part; `share` and `many` are the rules' thresholds.

        Raises:
            UserError: there is no such part.
        """
        part = part_name(part)
        chosen = self.added if part == "total" else self.parts[part]
        if part == "base" and self.skip:
            chosen = chosen - torch.eye(len(chosen))
        return find_motifs(chosen, share=share, many=many)


@analysis(
    title="Map over heads at one pair of positions",
    needs_composition=True,
    question="Which heads share with which, for one pair of tokens?",
    guide="analyses/composition-maps.md",
    example={"prompt": EXAMPLE_PROMPT, "layer": "1", "stage": "post", "query": "-1", "key": "4"},
)
def composition_map(bridge: Bridge, prompt: Prompt, layer: int, stage: str, query: int, key: int) -> CompositionMap:
    """The head-to-head map of one stage at one pair of positions, by part.

    Args:
        bridge: a bridge over a DCFormer.
        prompt: text, or token ids as in [5, 7, 9].
        layer: the layer; negative counts from the last.
        stage: "pre" for scores, "post" for weights.
        query: the position that attends; negative counts from the end.
        key: the position attended to, not after `query`.

    Cost: one forward pass that keeps one stage's dynamic weights.

    Raises:
        UserError: the model does not compose at that stage, or a position or layer does not exist.
    """
    require_stage(bridge, stage)
    ids = token_ids(bridge, prompt)
    layer = layer_number(bridge, layer)
    query, key = pair_of(query, key, ids.shape[1])
    composer = composer_of(bridge, layer, stage)
    maps = position_maps(bridge, ids, layer, stage)
    parts: dict[str, Any] = {"base": composer.base_map().float()}
    parts |= {name: each[query if BRANCHES[name].side == "query" else key].clone() for name, each in maps.items()}
    return CompositionMap(
        tokens=str_tokens(bridge, ids),
        layer=layer,
        stage=stage,
        query=query,
        key=key,
        skip=bool(composer.skip),
        beyond=composer.name if composer.reads_beyond else "",
        window=bridge.original_model.config.window(layer),
        total=torch.stack([parts[name] for name in PARTS]).sum(0),
        **parts,
    )
