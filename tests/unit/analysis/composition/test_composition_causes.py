"""Causes add up to what they explain, and are what the model itself does when a component is taken away."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import dcinterp
from dcinterp import UserError, composition_causes
from dcinterp.mechanism.stream import Stream
from dcinterp.mechanism.upstream import upstream


@pytest.mark.parametrize("preset", ["tiny-dcformer++", "tiny-dcpythia"])
def test_the_components_of_a_stream_add_up_to_it(make_bridge, prompt, preset):
    bridge = make_bridge(preset)
    ids = bridge.to_tokens(prompt)
    parts = upstream(bridge, Stream(bridge, ids), 1)
    read = bridge.run_with_cache(ids, names_filter=["blocks.1.hook_in"])[1]["blocks.1.hook_in"][0]
    assert torch.allclose(parts.written.sum(0), read, atol=1e-5)
    assert len(parts.names) == 1 + bridge.cfg.n_heads + 1 + 1
    direction = torch.randn(bridge.cfg.d_model)
    by_token = parts.tokens(5, direction)
    assert torch.allclose(by_token.sum(1), parts.against_mean(5) @ direction, atol=1e-4)


@pytest.mark.parametrize("preset", ["tiny-dcformer++", "tiny-dcpythia"])
@pytest.mark.parametrize("branch", ["qp", "kp"])
def test_causes_and_gap_add_up_to_the_difference(make_bridge, prompt, preset, branch):
    bridge = make_bridge(preset)
    found = composition_causes(bridge, prompt, 1, 2, 3, -1, 4, branch=branch)
    difference = found.value - found.at_mean
    assert torch.allclose(found.causes.sum(1) + found.gap, difference, atol=1e-5)
    assert torch.allclose(found.by_token.sum(1), found.causes.sum(1), atol=1e-4)
    if not bridge.model_config.use_qk_norm:
        assert (found.gap[:2].abs() <= 1e-5 * found.value[:2].abs().clamp(min=1)).all(), "scores are linear"
    terms = dcinterp.compose_breakdown(bridge, prompt, 1, -1, 4)
    w1, w2 = (getattr(terms, f"w_{branch[0]}{number}") for number in (1, 2))
    assert float(found.value[2]) == pytest.approx(float((w1[:, 2] * w2[:, 3]).sum()), abs=1e-5)


@pytest.mark.parametrize("setter", ["set_use_split_qkv_input", "set_use_attn_in"])
def test_inputs_of_each_head_change_nothing(make_bridge, prompt, setter):
    """They are made from the stream, past attention's own input."""
    bridge = make_bridge("tiny-dcformer++")
    expected = composition_causes(bridge, prompt, 1, 2, 3, -1, 4)
    getattr(bridge, setter)(True)
    found = composition_causes(bridge, prompt, 1, 2, 3, -1, 4)
    for name, tensor in expected.tensors().items():
        torch.testing.assert_close(found.tensors()[name], tensor, atol=1e-4, rtol=1e-4)
    assert getattr(bridge.cfg, setter.removeprefix("set_")), "as the person left it"


def test_an_ablation_is_what_the_model_does(bridge, prompt):
    """Head 5 of layer 0 set to its mean over the other positions, by hand, at the position whose stream is read."""
    found = composition_causes(bridge, prompt, 1, 2, 3, -1, 4, branch="qp")
    ids = bridge.to_tokens(prompt)
    names = ["blocks.0.attn.hook_z", "blocks.1.attn.pre.hook_in"]
    cache = bridge.run_with_cache(ids, names_filter=names)[1]
    z, last = cache[names[0]], ids.shape[1] - 1
    change = (z[0, last, 5] - z[0, :last, 5].mean(0)) @ bridge.blocks[0].attn.W_O[5]

    def without(x, hook):
        x = x.clone()
        x[:, last] -= change
        return x

    seen = {}
    with torch.no_grad():
        bridge.run_with_hooks(
            ids,
            fwd_hooks=[("blocks.1.hook_in", without), (names[1], lambda t, hook: seen.update(score=t[0, 2, last, 4]))],
        )
    effect = float(cache[names[1]][0, 2, last, 4] - seen["score"])
    assert float(found.ablation[0, found.components.index("L0H5")]) == pytest.approx(effect, abs=1e-5)


def test_gates_are_explained_for_a_head_by_itself(bridge, prompt):
    found = composition_causes(bridge, prompt, 1, 2, 2, -1, 4, branch="kg")
    terms = dcinterp.compose_breakdown(bridge, prompt, 1, -1, 4)
    assert float(found.value[2]) == pytest.approx(float(terms.w_kg[2]), abs=1e-6)
    with pytest.raises(UserError, match="shares nothing"):
        composition_causes(bridge, prompt, 1, 2, 3, -1, 4, branch="kg")


def test_sentences_name_the_top_cause(bridge, prompt):
    found = composition_causes(bridge, prompt, 1, 2, 3, -1, 4)
    for number, sentence in enumerate(found.sentences()):
        assert found.components[found.top(number)] in sentence
        assert ("does not confirm it" in sentence) != found.confirmed(number)
    denied = dataclasses.replace(found, ablation=-found.causes)
    assert all("does not confirm it" in sentence for sentence in denied.sentences())
    agreed = dataclasses.replace(found, ablation=found.causes)
    assert all("which confirms it" in sentence for sentence in agreed.sentences())


def test_of_a_token_that_attends_to_itself_the_key_stays_as_it_is(make_bridge, prompt):
    """Then the score is linear in what the query reads, as with any other key."""
    bridge = make_bridge()
    found = composition_causes(bridge, prompt, 1, 2, 3, 9, 9)
    assert not torch.allclose(found.causes[0], found.causes[1])
    assert (found.gap[:2].abs() <= 1e-5 * found.value[:2].abs().clamp(min=1)).all()


def test_a_pair_outside_the_local_window_is_refused(make_bridge, prompt):
    bridge = make_bridge(attention_windows=(3, 3))
    composition_causes(bridge, prompt, 1, 2, 3, 9, 7)
    with pytest.raises(UserError, match="Key 6 is outside the local window of layer 1, of 3 tokens up to the query 9"):
        composition_causes(bridge, prompt, 1, 2, 3, 9, 6)


def test_a_map_of_all_tokens_is_not_said_to_share_nothing(make_bridge):
    with pytest.raises(UserError, match="what all tokens share is in static_composition_map"):
        dcinterp.composition_causes(make_bridge(compose="static"), [3, 5, 7, 9], 0, 0, 1, -1, 0)
