"""Averages over questions: one example is the single analysis, and the controls hold what chance gives."""

from __future__ import annotations

import pytest
import torch

import dcinterp
from dcinterp import UserError, attribute_heads, attribute_heads_over
from dcinterp.mechanism.dataset import read_questions, repeats
from dcinterp.mechanism.label_permutation import other_answers
from dcinterp.mechanism.statistics import bootstrap_interval, exchanged_extremes
from dcinterp.support.progress import Cancelled
from synthetic_tasks import corrupt

TEXT = "same-person,different-in-set n=6 seed=3"


def test_every_row_is_the_analysis_of_that_example(bridge):
    questions = read_questions(bridge, TEXT)
    result = attribute_heads_over(bridge, TEXT, steps=16)
    for row, question in enumerate(questions[:2]):
        one = attribute_heads(bridge, question.prompt, question.target, question.foil, steps=16)
        assert torch.allclose(one.scores, result.per_example[row], atol=1e-5)
        assert torch.allclose(one.ablation, result.ablation[row], atol=1e-5)
        assert torch.allclose(one.gap, result.gap[row], atol=1e-4)
        assert bool(result.right[row]) == one.right
    assert torch.allclose(result.mean, result.per_example.mean(0))
    low, high = bootstrap_interval(result.per_example, groups=repeats(bridge, questions))
    assert torch.allclose(result.low, low.float())
    assert torch.allclose(result.high, high.float())
    total = result.per_example.sum(-1) + result.gap
    assert torch.allclose(total, result.metric_difference, atol=1e-4)


def test_the_counterfactual_baseline_is_the_counterfactual_prompt(bridge):
    questions = read_questions(bridge, "same-person n=2 seed=1")
    result = attribute_heads_over(
        bridge, "same-person n=2 seed=1", baseline="counterfactual", counterfactual="question", control="none"
    )
    other = corrupt(questions[0].example, "question", tokenizer=bridge.tokenizer).corrupt
    one = attribute_heads(
        bridge,
        questions[0].prompt,
        questions[0].target,
        questions[0].foil,
        baseline=other.prompt,
        steps=8,
        max_steps=256,
    )
    assert torch.allclose(one.scores, result.per_example[0], atol=1e-5)
    assert not result.stands_out.any()


def test_examples_without_a_counterfactual_are_counted_and_left_out(bridge):
    # Which is different? names nothing that could be asked otherwise.
    with pytest.raises(UserError, match="choose another kind"):
        attribute_heads_over(bridge, "task57 n=2", baseline="counterfactual")
    result = attribute_heads_over(bridge, "task57,task2 n=4", baseline="counterfactual", control="none")
    assert (result.n, result.skipped) == (2, 2)
    assert any("no counterfactual prompt" in sentence for sentence in result.warnings())


def test_the_mean_baseline_differs_from_zero(bridge):
    zero = attribute_heads_over(bridge, "task2 n=2", control="none")
    mean = attribute_heads_over(bridge, "task2 n=2", baseline="mean", control="none")
    assert not torch.allclose(zero.per_example, mean.per_example, atol=1e-3)
    assert (mean.gap.abs() <= 0.011 * mean.metric_difference.abs() + 1e-5).all()


def test_exchangeable_heads_stay_inside_the_control():
    random = torch.Generator().manual_seed(0)
    inside = 0
    for trial in range(40):
        scores = torch.randn(30, 1, 6, generator=random) + 0.5
        low, high = exchanged_extremes(scores, torch.Generator().manual_seed(trial))
        extreme = scores.mean(0)[0]
        extreme = extreme[extreme.abs().argmax()]
        inside += int(low[0] <= extreme <= high[0])
    assert 33 <= inside <= 40
    scores[:, 0, 2] += 2
    low, high = exchanged_extremes(scores, torch.Generator().manual_seed(0))
    assert scores.mean(0)[0, 2] > high[0], "a head that is always the large one stands out"


def test_other_labels_score_other_answers(bridge):
    result = attribute_heads_over(bridge, "task2 n=3", control="labels")
    questions = read_questions(bridge, "task2 n=3")
    others = [
        attribute_heads(bridge, question.prompt, other.target, other.foil, steps=8).scores
        for question, other in zip(questions, other_answers(bridge, questions, seed=0), strict=True)
    ]
    low, high = bootstrap_interval(torch.stack(others), groups=repeats(bridge, questions))
    assert torch.allclose(result.control_low, low.float(), atol=1e-5)
    assert torch.allclose(result.control_high, high.float(), atol=1e-5)


def test_progress_can_stop_it(bridge):
    def stop(done: int, total: int, message: str = "") -> None:
        assert total == 6
        if done == 2:
            raise Cancelled

    with pytest.raises(Cancelled):
        attribute_heads_over(bridge, TEXT, progress=stop)
    assert not any(hook._forward_hooks for hook in bridge.hook_dict.values())


def test_on_the_shipped_model_scores_and_measured_effects_agree_in_sign(shipped):
    result = attribute_heads_over(shipped, "different-in-set n=6 seed=7")
    assert result.ablation_mean[result.best] > 0
    assert result.agreement > 0.5
    assert result.agreement_p < 0.01
    assert result.call.command().startswith("dcinterp analyze attribute-heads-over dcformer++ --examples")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"baseline": "one"}, "no baseline 'one'"),
        ({"control": "cats"}, "no control 'cats'"),
        ({"baseline": "counterfactual", "counterfactual": "same"}, "no counterfactual 'same'"),
        ({"examples": [("Ruth has a", "violin")], "baseline": "counterfactual"}, "Only examples of the tasks"),
    ],
)
def test_refusals(bridge, arguments, message):
    with pytest.raises(UserError, match=message):
        attribute_heads_over(bridge, **({"examples": "task2 n=2"} | arguments))


def test_public(bridge):
    result = dcinterp.attribute_heads_over(bridge, [("Ruth has a", "violin", "lime"), ("Ruth has", "a")])
    assert result.foils == ("lime", "")
    assert "There are only 2 examples" in " ".join(result.warnings())


def test_the_former_names_of_the_baseline_still_work(bridge):
    now = {"baseline": "counterfactual", "counterfactual": "question"}
    result = attribute_heads_over(bridge, "task2 n=2", control="none", method="gradient", **now)
    with pytest.warns(DeprecationWarning, match="twin= is called counterfactual= now"):
        former = attribute_heads_over(
            bridge, "task2 n=2", control="none", method="gradient", baseline="twin", twin="asked"
        )
    assert former == result
    assert result.baseline == "counterfactual (question)"


def test_a_counterfactual_that_there_is_none_of_is_refused_with_every_baseline(bridge):
    with pytest.raises(UserError, match="counterfactual"):
        dcinterp.attribute_heads_over(bridge, "same-person n=2", baseline="zero", counterfactual="bogus")
