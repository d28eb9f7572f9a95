"""Gated attention as transformers has it in Qwen3-Next: a sigmoid gate on every channel of what heads have read."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention, Qwen3NextRotaryEmbedding

from dcinterp.model.attention import ComposedAttention
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.mask import Sight
from dcinterp.model.rotary import rotation

WIDTH, HEADS, HEAD_WIDTH, POS = 32, 4, 8, 7


@torch.no_grad()
@pytest.mark.parametrize("output_attentions", [False, True], ids=["fast", "stage by stage"])
def test_it_is_the_attention_of_qwen3_next(output_attentions: bool) -> None:
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    config = Qwen3NextConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD_WIDTH,
        rope_parameters=rope,
        rms_norm_eps=1e-6,
    )
    config._attn_implementation = "eager"
    theirs = Qwen3NextAttention(config, 0)
    for name, parameter in theirs.named_parameters():
        noise = torch.randn_like(parameter)
        parameter.copy_(0.3 * noise if "norm" in name else noise / parameter.shape[-1] ** 0.5)
    ours = ComposedAttention(
        DCFormerConfig(
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            use_qk_norm=True,
            rotary_fraction=0.5,
            compose="gated",
            compose_options={"elementwise": True},
        ),
        0,
    )
    queries, gates = theirs.q_proj.weight.view(HEADS, 2, HEAD_WIDTH, WIDTH).unbind(1)
    ours.q_proj.weight.copy_(queries.flatten(0, 1))
    ours.post.gate.weight.copy_(gates.flatten(0, 1))
    for name in ("k_proj", "v_proj", "o_proj"):
        getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())
    for name in ("q_norm", "k_norm"):
        getattr(ours, name).weight.copy_(1 + getattr(theirs, name).weight)
    x, positions = torch.randn(2, POS, WIDTH), torch.arange(POS)[None]
    hidden = torch.full((POS, POS), -torch.inf).triu(1)[None, None]
    expected = theirs(x, Qwen3NextRotaryEmbedding(config)(x, positions), hidden)[0]
    turn = rotation(positions, HEAD_WIDTH // 2, 1e4, x.dtype)
    got = ours(x, turn, Sight(), output_attentions=output_attentions)[0]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
