"""Dense collaboration (MHDC) against its formula in float64, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dcinterp.model.attention import HandedOn
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.mask import Sight
from dcinterp.support.errors import UserError

SIZES = dict(vocab_size=11, hidden_size=24, num_attention_heads=4, num_hidden_layers=3, intermediate_size=16)
SIZES |= dict(compose="dense-collaboration")


def build(**changes: Any) -> DCFormerForCausalLM:
    torch.manual_seed(0)
    return DCFormerForCausalLM(DCFormerConfig(**(SIZES | changes))).double().eval()


@torch.no_grad()
def test_scores_are_those_of_the_formula() -> None:
    """Of three layers on one input each: those of the third hold scores of all."""
    model = build(position_type="learned")
    handed, written = HandedOn(), torch.zeros(4, 5, 5, dtype=torch.float64)
    for layer, block in enumerate(model.model.layers):
        attention = block.self_attn
        for parameter in attention.parameters():
            parameter.normal_(std=0.5)
        x = torch.randn(1, 5, 24, dtype=torch.float64)
        q, k, v = (each[0] for each in attention.project(x))
        before, written = written, torch.zeros_like(written)
        for h in range(4):
            for other in range(4):
                own = attention.pre.own.weight[0, other, h]
                written[h] += own * (q[other] @ k[other].T) / math.sqrt(6)
                if layer:
                    written[h] += attention.pre.earlier.weight[0, other, h] * before[other]
        hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
        pattern = written.masked_fill(hidden, -torch.inf).softmax(-1)
        out, got = attention(x, mask=Sight(), output_attentions=True, handed=handed)
        torch.testing.assert_close(handed.scores[0], written, atol=1e-10, rtol=0)
        torch.testing.assert_close(got[0], pattern, atol=1e-10, rtol=0)
        torch.testing.assert_close(out, attention.write((pattern @ v)[None]), atol=1e-10, rtol=0)
    assert not hasattr(model.model.layers[0].self_attn.pre, "earlier")


@torch.no_grad()
def test_at_first_attention_stays_as_it_is() -> None:
    model = build()
    plain = DCFormerForCausalLM(model.config.without_composition()).double().eval()
    plain.load_state_dict({name: model.state_dict()[name] for name in plain.state_dict()})
    ids = torch.randint(0, 11, (2, 9))
    torch.testing.assert_close(model(ids).logits, plain(ids).logits, atol=1e-10, rtol=0)


@torch.no_grad()
def test_padding_and_the_cache_change_nothing() -> None:
    model = build(num_key_value_heads=2)
    for parameter in model.parameters():
        parameter.normal_(std=0.3)
    ids, mask = torch.randint(0, 11, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    mask[0, :3] = 0
    alone = model(ids[:1, 3:]).logits[0]
    past, logits = None, []
    for end in range(1, 9):
        out = model(ids[:, end - 1 : end], attention_mask=mask[:, :end], past_key_values=past, use_cache=True)
        past = out.past_key_values
        logits.append(out.logits)
    for padded in (model(ids, attention_mask=mask).logits, torch.cat(logits, 1)):
        torch.testing.assert_close(padded[0, 3:], alone, atol=1e-10, rtol=0)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(UserError, match="which must see the same keys; give all layers one window"):
        build(attention_windows=(4, None))
    model, ids = build(attention_windows=(4,)), torch.zeros(1, 6, dtype=torch.long)
    assert model(ids).logits.isfinite().all()
    with pytest.raises(UserError, match="which did not run; run the model from its first layer"):
        model.model.layers[1](torch.zeros(1, 3, 24, dtype=torch.float64))
    model.gradient_checkpointing_enable()
    with pytest.raises(UserError, match="train without gradient checkpointing"):
        model.train()(ids)
