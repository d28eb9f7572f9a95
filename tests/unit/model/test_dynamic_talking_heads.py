"""The first values of dynamic talking heads, which transformers must not pass over."""

from __future__ import annotations

import pytest

from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM


def test_the_maps_of_tokens_start_small() -> None:
    config = DCFormerConfig(
        vocab_size=11, hidden_size=64, num_attention_heads=8, num_hidden_layers=1, compose="dynamic-talking-heads"
    )
    model = DCFormerForCausalLM(config)
    for side in (model.model.layers[0].self_attn.post.query, model.model.layers[0].self_attn.pre.key):
        assert float(side.maps.weight.detach().std()) == pytest.approx(0.1 / (64 * 8) ** 0.5, rel=0.1)
