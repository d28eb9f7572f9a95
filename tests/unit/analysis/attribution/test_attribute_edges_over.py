"""Edges over a dataset: one example is `attribute_edges`, and the two controls mean what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dcinterp import UserError, attribute_edges, attribute_edges_over, attribute_heads_over, intervene
from dcinterp.analysis.attribution.attribute_edges_over import _exchanged_edges

QUESTIONS = [
    ("< Ruth has a violin. Carol has a beetle. >. Ruth has a kind of", "fruit", "animal"),
    ("< Ruth has a lime. Carol has a car. >. Carol has a kind of", "animal", "fruit"),
]
OTHER_WORDS = [QUESTIONS[0], (*QUESTIONS[1][:2], "drink")]
QUICK = {"method": "gradient"}


def test_one_example_is_attribute_edges(bridge):
    one = attribute_edges(bridge, *QUESTIONS[0], check=3, **QUICK)
    many = attribute_edges_over(bridge, QUESTIONS[:1], check=3, control="none", **QUICK)
    assert torch.allclose(many.mean, one.scores, atol=1e-6)
    assert many.low.isnan().all(), "one example says nothing of another"
    assert many.checked == one.checked
    assert torch.allclose(many.ablation[0], one.measured, atol=1e-4)
    assert float(many.metric_difference[0, 0]) == pytest.approx(one.metric - float(one.metric_at_baseline[0]), abs=1e-4)


def test_labels_of_other_examples_are_the_control(bridge):
    many = attribute_edges_over(bridge, OTHER_WORDS, control="labels", check=0, **QUICK)
    own, bounds = (
        torch.stack([attribute_edges(bridge, prompt, *words, check=0, **QUICK).scores for prompt, words in asked])
        for asked in (
            [(prompt, words) for prompt, *words in OTHER_WORDS],
            [(prompt, words) for (prompt, *_), (_, *words) in zip(OTHER_WORDS, OTHER_WORDS[::-1], strict=True)],
        )
    )
    middle = (many.control_low + many.control_high) / 2
    assert torch.allclose(middle, bounds.mean(0), atol=1e-5)
    assert (many.control_low <= bounds.amin(0) + 1e-5).all()
    assert (many.control_high >= bounds.amax(0) - 1e-5).all()
    assert torch.allclose(many.per_example, own, atol=1e-5)


@pytest.mark.parametrize(("control", "units"), [("labels", 6), ("none", 4)])
def test_the_removals_go_on_where_the_scores_ended(bridge, control, units):
    told = []
    attribute_edges_over(
        bridge, OTHER_WORDS, control=control, check=1, progress=lambda *call: told.append(call), **QUICK
    )
    assert [call[:2] for call in told] == [(done, units) for done in range(1, units + 1)]
    assert told[-1][2] == "removals, example 2"


def test_an_edge_that_always_wins_stands_out_of_exchanged_ones():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(20, 1, 5, 4, 4, generator=generator)
    low, high = _exchanged_edges(noise, seed=0)
    inside = (noise.mean(0) >= low) & (noise.mean(0) <= high)
    assert inside.float().mean() > 0.9
    noise[:, 0, 2, 1, 3] += 5
    _, high = _exchanged_edges(noise, seed=0)
    assert noise.mean(0)[0, 2, 1, 3] > high[0, 2, 1, 3]


def test_warnings_say_what_to_know(bridge):
    many = attribute_edges_over(bridge, QUESTIONS, control="heads", check=2, **QUICK)
    said = " ".join(many.warnings())
    assert "wrong in 2 of 2" in said
    assert "There are only 2 examples" in said
    turned = replace(many, ablation=-_signs(many))
    assert "disagree in sign for 2 of the 2" in " ".join(turned.warnings())
    table = many.table()
    assert table["edge"].iloc[0].startswith("edge ")
    assert table["mean"].abs().is_monotonic_decreasing


def _signs(many):
    """The signs of the means of the checked edges, for every example."""
    means = dict(zip(many.table()["edge"], many.table()["mean"], strict=True))
    return torch.tensor([[1.0 if means[name] > 0 else -1.0 for name in many.checked]]).expand(many.n, -1)


def test_bad_choices_are_refused(bridge, twin):
    with pytest.raises(UserError, match="no control"):
        attribute_edges_over(bridge, QUESTIONS, control="luck")
    with pytest.raises(UserError, match="heads that are composed"):
        attribute_edges_over(twin, QUESTIONS)


def test_a_right_answer_of_several_tokens_is_right(shipped):
    """Of words that this tokenizer joins with spaces: the answer is two tokens of it."""
    asked = "< Karen has a lion. Thomas has a guitar. Charles has a bee. >. Thomas owns a kind of"
    questions = [(asked, "musical instrument"), (asked, "musical animal")]
    right = [True, False]
    assert attribute_heads_over(shipped, questions, control="none", **QUICK).right.tolist() == right
    assert attribute_edges_over(shipped, questions, check=0, control="none", **QUICK).right.tolist() == right
    said = attribute_edges(shipped, *questions[0], check=0, **QUICK).warnings()
    assert not any("The model answers" in each for each in said)
    effect = intervene(shipped, asked, "head 1.3 zero", "musical instrument")
    assert effect.answer_before == "musical instrument"
    assert not any("answers" in each for each in effect.warnings())
    assert "(another token of the same text)" in replace(effect, right_before=False).warnings()[0]
    assert not any("answers" in each for each in replace(effect, right_before=None).warnings()), "as 0.1 saved it"
