"""Integrated gradients against captum, against completeness, and against a head that is switched off."""

from __future__ import annotations

import pytest
import torch
from captum.attr import IntegratedGradients, LayerIntegratedGradients

from dcinterp import UserError, attribute_heads


@pytest.mark.parametrize("preset", ["tiny-dcformer++", "tiny-transformer++", "tiny-dcpythia"])
def test_scores_of_a_layer_add_up_to_what_the_layer_does(make_bridge, prompt, preset):
    result = attribute_heads(make_bridge(preset), prompt, "fruit", "animal")
    difference = result.metric - result.metric_at_baseline
    assert torch.allclose(result.scores.sum(1) + result.gap, difference, atol=1e-4)
    assert (result.relative_gap <= 0.01).all(), "the gap at the default steps is at most 1 % of the metric difference"


def test_metric_at_baseline_is_the_model_without_the_layer(bridge, prompt):
    result = attribute_heads(bridge, prompt, "fruit", "animal")
    ids = bridge.to_tokens(prompt)
    target, foil = (bridge.tokenizer.convert_tokens_to_ids(word) for word in ("fruit", "animal"))
    for layer in range(2):
        with torch.no_grad():
            logits = bridge.run_with_hooks(
                ids, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", lambda z, hook: torch.zeros_like(z))]
            )
        without = float(logits[0, -1, target] - logits[0, -1, foil])
        assert float(result.metric_at_baseline[layer]) == pytest.approx(without, abs=1e-4)


def test_agrees_with_captums_layer_method_layer_by_layer(bridge, prompt):
    """captum takes its baseline at the tokens: with the same counterfactual prompt both integrate the same path."""
    ids = bridge.to_tokens(prompt)
    other = prompt.replace("Ruth", "Mary").replace("beetle", "tiger")
    target, foil = (bridge.tokenizer.convert_tokens_to_ids(word) for word in ("fruit", "animal"))

    def metric(tokens: torch.Tensor) -> torch.Tensor:
        logits = bridge(tokens)
        return logits[:, -1, target] - logits[:, -1, foil]

    result = attribute_heads(bridge, prompt, "fruit", "animal", baseline=other)
    for layer in range(2):
        captum = LayerIntegratedGradients(metric, bridge.blocks[layer].attn.o)
        scores = captum.attribute(
            ids,
            baselines=bridge.to_tokens(other),
            n_steps=64,
            attribute_to_layer_input=True,
            internal_batch_size=64,
        )
        by_head = scores.reshape(1, ids.shape[1], 8, 16).sum(dim=(0, 1, 3))
        assert torch.allclose(by_head, result.scores[layer], atol=1e-4), layer


def test_agrees_with_captum_from_a_zero_baseline(bridge, prompt):
    """The same integral by captum, on the layer's tensor itself, where it accepts a baseline of zero."""
    ids = bridge.to_tokens(prompt)
    target = bridge.tokenizer.convert_tokens_to_ids("fruit")
    result = attribute_heads(bridge, prompt, "fruit")
    for layer in range(2):
        name = f"blocks.{layer}.attn.hook_z"

        def metric(value: torch.Tensor, name: str = name) -> torch.Tensor:
            hooks = [(name, lambda _, hook: value)]
            return bridge.run_with_hooks(ids.expand(len(value), -1), fwd_hooks=hooks)[:, -1, target]

        z = bridge.run_with_cache(ids, names_filter=name)[1][name].detach()
        scores = IntegratedGradients(metric).attribute(z, n_steps=64, internal_batch_size=64)
        assert torch.allclose(scores.sum(dim=(0, 1, 3)), result.scores[layer], atol=1e-3), layer


def test_a_head_whose_output_is_switched_off_scores_zero(bridge, prompt):
    attention = bridge.original_model.model.layers[1].self_attn
    with torch.no_grad():
        attention.o_proj.weight[:, 16 * 3 : 16 * 4] = 0
    scores = attribute_heads(bridge, prompt, "fruit").scores
    assert scores[1, 3] == 0
    assert scores[1].abs().max() > 1e-3


def test_the_gradient_method_reports_the_larger_gap_it_leaves(make_bridge, prompt):
    bridge = make_bridge()
    once = attribute_heads(bridge, prompt, "fruit", method="gradient")
    integrated = attribute_heads(bridge, prompt, "fruit")
    assert once.gap.abs().max() > integrated.gap.abs().max()
    coarse = attribute_heads(bridge, prompt, "fruit", steps=2, max_steps=2, tolerance=0)
    assert (coarse.steps == 2).all()


def test_leaves_no_hook_behind_and_the_model_untouched(bridge, prompt):
    before = bridge(prompt)
    attribute_heads(bridge, prompt, "fruit", "animal")
    assert not any(hook._forward_hooks or hook._backward_hooks for hook in bridge.hook_dict.values())
    assert torch.equal(before, bridge(prompt))
    assert all(p.grad is None for p in bridge.original_model.parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "zebra"}, "zebra"),
        ({"target": "fruit", "foil": "fruit"}, "choose another foil"),
        ({"target": "New York"}, "2 tokens"),
        ({"target": "fruit", "at": 99}, "outside the prompt"),
        ({"target": "fruit", "method": "magic"}, "choose 'ig' or 'gradient'"),
        ({"target": "fruit", "baseline": "Ruth has a violin."}, "as many tokens"),
    ],
)
def test_refuses_with_a_sentence(bridge, prompt, arguments, message):
    with pytest.raises(UserError, match=message):
        attribute_heads(bridge, prompt, **arguments)
