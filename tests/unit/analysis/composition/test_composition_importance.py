"""What composition adds, by integrated gradients, against switching it off by hooks and against captum."""

from __future__ import annotations

import pytest
import torch
from captum.attr import IntegratedGradients

from dcinterp import UserError, composition_importance
from dcinterp.analysis.composition.composition_importance import ADDED
from dcinterp.mechanism.dataset import read_questions

TEXT = "task2 n=2 seed=1"


def difference(bridge, question, hooks):
    """f(model) - f(model with hooks), f the logit difference."""
    values = []
    for given in ([], hooks):
        with torch.no_grad():
            logits = bridge.run_with_hooks(question.prompt, fwd_hooks=given)[0, -1]
        values.append(float(logits[question.target] - logits[question.foil]))
    return values[0] - values[1]


def silenced(bridge, layer, stage):
    names = [f"blocks.{layer}.attn.{stage}.hook_{branch}" for branch in ADDED]
    return [(name, lambda branch, hook: branch * 0) for name in names if name in bridge.hook_dict]


def test_branches_add_up_to_what_switching_them_off_costs(bridge):
    result = composition_importance(bridge, TEXT, kind="zero")
    for row, question in enumerate(read_questions(bridge, TEXT)):
        for layer in range(2):
            for place, stage in enumerate(("pre", "post")):
                measured = difference(bridge, question, silenced(bridge, layer, stage))
                total = result.scores[row, layer, place].sum() + result.gap[row, layer, place]
                assert float(result.metric_difference[row, layer, place]) == pytest.approx(measured, abs=1e-4)
                assert float(total) == pytest.approx(measured, abs=1e-4)
    assert torch.allclose(result.by_layer, result.scores.sum((-1, -2)).mean(0))
    assert torch.allclose(result.by_branch.sum(-1), result.by_layer, atol=1e-5)


def test_by_default_branches_add_up_to_what_their_means_over_the_examples_cost(bridge):
    result = composition_importance(bridge, TEXT)
    questions = read_questions(bridge, TEXT)
    caches = [bridge.run_with_cache(question.prompt)[1] for question in questions]
    at, seen, hooks = "blocks.1.attn.post.hook_", {}, []
    hooks.append((f"{at}in", lambda a, hook: seen.update(attention=a)))
    for side in "qk":
        low = [torch.einsum("prf,prh->pfh", c[f"{at}w_{side}1"][0], c[f"{at}w_{side}2"][0]) for c in caches]
        gate = torch.diag(torch.cat([c[f"{at}w_{side}g"][0] for c in caches]).mean(0))
        for name, mean in ((f"{side}p", torch.cat(low).mean(0)), (f"{side}g", gate)):
            put = (f"{at}o_{name}", lambda o, hook, m=mean: torch.einsum("bfts,fh->bhts", seen["attention"], m))
            hooks.append(put)
    zero = []
    for row, question in enumerate(questions):
        measured = difference(bridge, question, hooks)
        zero.append(difference(bridge, question, silenced(bridge, 1, "post")))
        total = result.scores[row, 1, 1].sum() + result.gap[row, 1, 1]
        assert float(result.metric_difference[row, 1, 1]) == pytest.approx(measured, abs=1e-4)
        assert float(total) == pytest.approx(measured, abs=1e-4)
        assert measured != pytest.approx(zero[-1], abs=1e-4)
    assert result.at_zero[1][1] == pytest.approx(sum(zero) / len(zero), abs=1e-4)
    assert result.table()["ablated_by_zero"][3] == result.at_zero[1][1]


def test_the_joint_path_adds_all_compositions_at_once(bridge):
    result = composition_importance(bridge, TEXT, path="joint", kind="zero")
    hooks = [hook for layer in range(2) for stage in ("pre", "post") for hook in silenced(bridge, layer, stage)]
    for row, question in enumerate(read_questions(bridge, TEXT)):
        measured = difference(bridge, question, hooks)
        total = float(result.scores[row].sum() + result.gap[row, 0, 0])
        assert total == pytest.approx(measured, abs=1e-3)
        assert result.gap[row].unique().numel() == 1


def test_agrees_with_captum_on_the_composed_matrix(bridge):
    (question, *_) = read_questions(bridge, TEXT)
    result = composition_importance(bridge, [question.example], steps=32, kind="zero")
    ids = bridge.to_tokens(question.prompt)
    names = [f"blocks.0.attn.post.hook_{name}" for name in ("out", "o_b")]
    _, cache = bridge.run_with_cache(ids, names_filter=names)
    out, kept = (cache[name].detach() for name in names)

    def metric(value: torch.Tensor) -> torch.Tensor:
        hooks = [(names[0], lambda _, hook: value)]
        logits = bridge.run_with_hooks(ids.expand(len(value), -1), fwd_hooks=hooks)[:, -1]
        return logits[:, question.target] - logits[:, question.foil]

    captum = IntegratedGradients(metric).attribute(out, baselines=kept, n_steps=32, internal_batch_size=32)
    by_head = captum.sum((0, 2, 3))
    assert torch.allclose(by_head, result.scores[0, 0, 1].sum(0), atol=1e-3)


def test_a_branch_that_the_model_lacks_scores_zero(make_bridge):
    bridge = make_bridge(compose_gate=False)
    result = composition_importance(bridge, TEXT)
    assert not result.scores[:, :, :, [ADDED.index("o_qg"), ADDED.index("o_kg")]].any()
    assert result.scores.any()


def test_one_stage_only(make_bridge):
    result = composition_importance(make_bridge(compose_stages=("post",)), TEXT)
    assert result.stages == ("post",)
    assert result.by_layer.shape == (2, 1)


def test_plain_attention_is_refused(twin):
    with pytest.raises(UserError, match="needs heads that are composed"):
        composition_importance(twin, TEXT)


def test_a_composition_without_dynamic_branches_is_refused(make_bridge):
    with pytest.raises(UserError, match="has no branch that is made from the tokens"):
        composition_importance(make_bridge(compose="static"), TEXT)


def test_examples_that_share_a_fact_have_no_intervals_and_this_is_said(make_bridge):
    found = composition_importance(make_bridge(), "same-person n=2")
    assert found.low.isnan().all()
    assert any("share their facts and count as one, so there are no intervals" in said for said in found.warnings())
