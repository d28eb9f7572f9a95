"""A model without MLPs is a model like any other: trained, folded, wrapped and attributed."""

from __future__ import annotations

import warnings

import pytest
import torch

import dcinterp
from dcinterp.bridge.wrapping import wrap
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["swiglu", "gelu"])
def test_no_units_add_nothing_but_the_bias(kind, bias):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = DCFormerForCausalLM(
            DCFormerConfig(
                vocab_size=11, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=0,
                mlp_type=kind, mlp_bias=bias,
            )
        )  # fmt: skip
    bridge = wrap(model)
    ids = torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(0))
    logits, cache = bridge.run_with_cache(ids)
    assert float(cache["blocks.1.hook_mlp_out"].abs().max()) == 0
    assert torch.allclose(logits, model(ids).logits, atol=1e-6)
    bridge.enable_compatibility_mode(disable_warnings=True)
    assert torch.allclose(bridge(ids).log_softmax(-1), logits.log_softmax(-1), atol=1e-4)
    scores = dcinterp.attribute_heads(bridge, ids[0].tolist(), target=3, steps=2)
    assert bool(scores.scores.isfinite().all())


def test_fewer_units_than_none_are_refused():
    with pytest.raises(ValueError, match="intermediate_size is -1; it must be 0"):
        DCFormerConfig(intermediate_size=-1)
