"""Integrated gradients against captum, against completeness, and against a head that is switched off."""

from __future__ import annotations

import pytest
import torch
from captum.attr import IntegratedGradients, LayerIntegratedGradients

import dcinterp
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

    result = attribute_heads(bridge, prompt, "fruit", "animal", baseline=other, steps=64)
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
    result = attribute_heads(bridge, prompt, "fruit", steps=64)
    for layer in range(2):
        name = f"blocks.{layer}.attn.hook_z"

        def metric(value: torch.Tensor, name: str = name) -> torch.Tensor:
            hooks = [(name, lambda _, hook: value)]
            return bridge.run_with_hooks(ids.expand(len(value), -1), fwd_hooks=hooks)[:, -1, target]

        z = bridge.run_with_cache(ids, names_filter=name)[1][name].detach()
        scores = IntegratedGradients(metric).attribute(z, n_steps=64, internal_batch_size=64)
        assert torch.allclose(scores.sum(dim=(0, 1, 3)), result.scores[layer], atol=1e-3), layer


def test_the_joint_path_agrees_with_captums_list_of_layers(bridge, prompt):
    """Given several layers, captum moves them all along one path."""
    ids = bridge.to_tokens(prompt)
    other = prompt.replace("Ruth", "Mary").replace("beetle", "tiger")
    target, foil = (bridge.tokenizer.convert_tokens_to_ids(word) for word in ("fruit", "animal"))

    def metric(tokens: torch.Tensor) -> torch.Tensor:
        logits = bridge(tokens)
        return logits[:, -1, target] - logits[:, -1, foil]

    result = attribute_heads(bridge, prompt, "fruit", "animal", baseline=other, path="joint", steps=64)
    captum = LayerIntegratedGradients(metric, [bridge.blocks[layer].attn.o for layer in range(2)])
    scores = captum.attribute(
        ids, baselines=bridge.to_tokens(other), n_steps=64, attribute_to_layer_input=True, internal_batch_size=64
    )
    for layer, each in enumerate(scores):
        by_head = each.reshape(1, ids.shape[1], 8, 16).sum(dim=(0, 1, 3))
        assert torch.allclose(by_head, result.scores[layer], atol=1e-4), layer


@pytest.mark.parametrize("preset", ["tiny-dcformer++", "tiny-dcpythia"])
def test_joint_scores_of_all_layers_add_up_to_one_difference(make_bridge, prompt, preset):
    bridge = make_bridge(preset)
    result = attribute_heads(bridge, prompt, "fruit", "animal", path="joint")
    assert result.gap.unique().numel() == 1
    difference = result.metric - float(result.metric_at_baseline[0])
    assert float(result.scores.sum() + result.gap[0]) == pytest.approx(difference, abs=1e-4)
    zero = [(f"blocks.{layer}.attn.hook_z", lambda z, hook: torch.zeros_like(z)) for layer in range(2)]
    target, foil = (bridge.tokenizer.convert_tokens_to_ids(word) for word in ("fruit", "animal"))
    with torch.no_grad():
        logits = bridge.run_with_hooks(bridge.to_tokens(prompt), fwd_hooks=zero)
    without = float(logits[0, -1, target] - logits[0, -1, foil])
    assert float(result.metric_at_baseline[0]) == pytest.approx(without, abs=1e-4)


def test_the_identity_holds_to_machine_precision_in_float64(make_bridge, prompt):
    bridge = make_bridge()
    bridge.original_model.double()
    result = attribute_heads(bridge, prompt, "fruit", "animal", steps=128, tolerance=0)
    assert result.gap.abs().max() < 1e-6


def test_the_mean_baseline_is_the_mean_over_the_positions_of_the_reference_set(bridge, prompt):
    reference = [prompt, "Ruth has a violin."]
    result = attribute_heads(bridge, prompt, "fruit", "animal", reference=reference)
    z = [bridge.run_with_cache(bridge.to_tokens(p), names_filter="blocks.1.attn.hook_z")[1] for p in reference]
    mean = torch.cat([each["blocks.1.attn.hook_z"][0] for each in z]).mean(0)
    target, foil = (bridge.tokenizer.convert_tokens_to_ids(word) for word in ("fruit", "animal"))
    with torch.no_grad():
        logits = bridge.run_with_hooks(
            bridge.to_tokens(prompt), fwd_hooks=[("blocks.1.attn.hook_z", lambda x, hook: mean.expand_as(x))]
        )
    assert float(result.metric_at_baseline[1]) == pytest.approx(
        float(logits[0, -1, target] - logits[0, -1, foil]), abs=1e-4
    )
    assert result.baseline == "mean"


def test_ablation_is_the_measured_effect_of_one_head(bridge, prompt):
    result = attribute_heads(bridge, prompt, "fruit", "animal", batch_size=4)
    target, foil = (bridge.tokenizer.convert_tokens_to_ids(word) for word in ("fruit", "animal"))

    def without(z, hook):
        z = z.clone()
        z[:, :, 5] = 0
        return z

    with torch.no_grad():
        logits = bridge.run_with_hooks(bridge.to_tokens(prompt), fwd_hooks=[("blocks.1.attn.hook_z", without)])
    effect = result.metric - float(logits[0, -1, target] - logits[0, -1, foil])
    assert float(result.ablation[1, 5]) == pytest.approx(effect, abs=1e-4)


def test_log_probability_of_an_answer_of_two_tokens(bridge, prompt):
    result = attribute_heads(bridge, prompt, "New York", objective="log-probability")
    new, york = bridge.tokenizer("New York", add_special_tokens=False)["input_ids"]
    ids = bridge.to_tokens(prompt)
    with torch.no_grad():
        logp = bridge(torch.cat([ids, torch.tensor([[new]])], 1)).log_softmax(-1)
    assert result.metric == pytest.approx(float(logp[0, -2, new] + logp[0, -1, york]), abs=1e-4)
    assert result.tokens[-1] == "New"
    assert torch.allclose(result.scores.sum(1) + result.gap, result.metric - result.metric_at_baseline, atol=1e-4)


def test_a_foil_is_compared_where_the_answers_first_differ(bridge, prompt):
    result = attribute_heads(bridge, prompt, "New York", "New Delhi")
    assert (result.target, result.foil, result.tokens[-1]) == ("York", "Delhi", "New")
    same = attribute_heads(bridge, f"{prompt} New", "York", "Delhi")
    assert torch.allclose(result.scores, same.scores)


def test_warnings_say_what_to_know(bridge, prompt):
    wrong = attribute_heads(bridge, prompt, "fruit", "animal", method="gradient", tolerance=0)
    said = " ".join(wrong.warnings())
    assert "The model answers" in said
    assert "miss up to" in said
    assert ("disagree in sign" in said) == bool(wrong.disagreements)
    top = dcinterp.predict(bridge, prompt).top_ids
    right = attribute_heads(bridge, prompt, int(top[0]), int(top[1]))
    assert not any("answers" in sentence or "miss" in sentence for sentence in right.warnings())


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
        ({"target": "New York", "at": 3}, "only fit behind the prompt"),
        ({"target": "New", "foil": "New York"}, "begin alike"),
        ({"target": "fruit", "objective": "fame"}, "choose from log-probability, logit"),
        ({"target": "fruit", "path": "long"}, "choose from joint, layer"),
        ({"target": "fruit", "baseline": "x", "reference": ["x"]}, "not both"),
        ({"target": "fruit", "at": 99}, "outside the prompt"),
        ({"target": "fruit", "method": "magic"}, "choose from gradient, ig"),
        ({"target": "fruit", "baseline": "Ruth has a violin."}, "as many tokens"),
    ],
)
def test_refuses_with_a_sentence(bridge, prompt, arguments, message):
    with pytest.raises(UserError, match=message):
        attribute_heads(bridge, prompt, **arguments)
