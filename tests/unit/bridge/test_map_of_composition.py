"""The map over heads of any pair, from its parts: applying it is composing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dcinterp
from dcinterp.bridge import DCBridge

ABLATIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "static": dict(compose_static=True),
    "static only": dict(compose="static", compose_skip=False),
    "groups": dict(compose_groups=2, compose_static=True, compose_rank=1),
    "query-wise": dict(compose_key_wise=False),
    "no gate, no skip": dict(compose_gate=False, compose_skip=False),
}


@pytest.mark.filterwarnings("ignore:The filter function selects none")
@pytest.mark.parametrize("stage", ["pre", "post"])
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_applying_the_map_is_composing(ablation: str, stage: str, bridge: Callable[..., DCBridge], ids: Tensor) -> None:
    model = bridge(**ABLATIONS[ablation])
    _, cache = model.run_with_cache(ids[:1])
    at = f"blocks.1.attn.{stage}.hook_"
    for query, key in ((6, 2), (-1, 0), (3, 3)):
        found = dcinterp.composition_map(model, ids[:1], 1, stage, query=query, key=key)
        before, after = (cache[f"{at}{end}"][0, :, query, key] for end in ("in", "out"))
        torch.testing.assert_close(before @ found.total, after, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(sum(found.parts.values()), found.total)
        for part, branch in (("base", "o_b"), ("qp", "o_qp"), ("kg", "o_kg")):
            if f"{at}{branch}" in cache:
                expected = cache[f"{at}{branch}"][0, :, query, key]
                torch.testing.assert_close(before @ found.parts[part], expected, atol=1e-5, rtol=1e-4)
