"""The part of a stage's map over heads that is the same for all tokens: the skip and W_b.

    A'[head_to] = sum over head_from of A[head_from] * base[head_from, head_to] + what the tokens add

It does not show what the tokens add: that is `composition_map` at a pair, or `mean_composition_map`.

Identity that the tests assert: the base of `composition_map` at any pair.

    dcinterp.static_composition_map(model, layer=0, stage="pre").base
"""

from __future__ import annotations

from typing import Any

import torch

from dcinterp.analysis.composition.composition_map import STATIC, CompositionMap
from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.branches import PARTS
from dcinterp.mechanism.head_maps import composer_of
from dcinterp.mechanism.prompt import layer_number, require_stage
from dcinterp.results.registry import analysis


@analysis(
    title="Static map over heads",
    needs_composition=True,
    question="What is the same for all tokens?",
    guide="analyses/composition-maps.md",
    example={"layer": "1", "stage": "post"},
)
def static_composition_map(bridge: Bridge, layer: int, stage: str) -> CompositionMap:
    """The part of a stage's map that is the same for all tokens: the skip and W_b, where the model has one.

    Args:
        bridge: a bridge over a DCFormer.
        layer: the layer; negative counts from the last.
        stage: "pre" for scores, "post" for weights.

    Cost: none; it reads weights.

    Raises:
        UserError: the model does not compose at that stage, or has no such layer.
    """
    require_stage(bridge, stage)
    layer, heads = layer_number(bridge, layer), bridge.cfg.n_heads
    composer = composer_of(bridge, layer, stage)
    base = composer.base_map().float()
    empty: dict[str, Any] = {name: torch.zeros(heads, heads) for name in PARTS[1:]}
    return CompositionMap(
        tokens=(),
        layer=layer,
        stage=stage,
        query=STATIC,
        key=STATIC,
        skip=bool(composer.skip),
        total=base.clone(),
        base=base,
        **empty,
    )
