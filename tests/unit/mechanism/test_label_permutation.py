"""The label-permutation control: examples with the same facts never get their own labels, and few labels are said."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcinterp import UserError, attribute_edges, attribute_edges_over, attribute_heads, attribute_heads_over
from dcinterp.mechanism.dataset import read_questions
from dcinterp.mechanism.label_permutation import label_warnings, other_answers, other_places

# Two questions, each put twice, side by side: what sets of the tasks look like.
FRUIT = ("< Ruth has a violin. Carol has a beetle. >. Ruth has a kind of", "fruit", "animal")
ANIMAL = ("< Ruth has a lime. Carol has a car. >. Carol has a kind of", "animal", "drink")
TWINS = [FRUIT, FRUIT, ANIMAL, ANIMAL]
QUICK = {"method": "gradient"}


@given(st.lists(st.sampled_from([("a", "b"), ("b", "a"), ("c", None), ("d", "e"), ("a", "e")]), min_size=2))
def test_nobody_gets_its_own(labels):
    groups = [frozenset(label) for label in labels]  # exchanged labels count as the same
    if len(set(groups)) < 2:
        with pytest.raises(UserError, match="same target and foil"):
            other_places(labels)
        return
    partners = other_places(labels, draws=3)
    assert all(groups[place] != groups[other] for place, other in enumerate(partners))
    most = max(Counter(groups).values())
    if 2 * most <= len(labels):
        assert sorted(partners) == list(range(len(labels))), "every answer is used once"
    else:
        used = [count for place, count in Counter(partners).items() if groups[place] != max(groups, key=groups.count)]
        assert max(used) - min(used) <= 1, "the few others are used in turn"
    assert partners == other_places(labels, draws=3), "the same for the same seed"


def test_one_other_label_does_not_bring_the_exchanged_ones_back():
    labels = [("a", "b")] * 12 + [("b", "a")] * 12 + [("c", "d")]
    assert other_places(labels) == [24] * 24 + [other_places(labels)[24]]
    (said,) = label_warnings(*zip(*labels, strict=True), "labels")
    assert said.startswith("24 of 25 examples have the same target and foil, or these exchanged")


def test_pairs_share_as_few_words_as_can_be():
    labels = [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")] * 2
    for place, other in enumerate(other_places(labels)):
        assert not set(labels[place]) & set(labels[other])


@pytest.mark.parametrize("text", ["same-person n=16", "different-in-set n=20"])
def test_examples_of_the_same_facts_do_not_get_their_own_labels(bridge, text):
    questions = read_questions(bridge, text)
    answers = [(question.target, question.foil) for question in questions]
    assert sum(a == b for a, b in zip(answers, answers[1:], strict=False)) >= 8, "what a shift by one would pair"
    others = [(question.target, question.foil) for question in other_answers(bridge, questions, seed=0)]
    assert not any(own == other for own, other in zip(answers, others, strict=True))
    assert sorted(map(str, others)) == sorted(map(str, answers))


def test_heads_are_compared_with_other_answers_only(bridge):
    found = attribute_heads_over(bridge, TWINS, control="labels", **QUICK)
    elsewhere = [attribute_heads(bridge, FRUIT[0], *ANIMAL[1:], **QUICK).scores]
    elsewhere += [attribute_heads(bridge, ANIMAL[0], *FRUIT[1:], **QUICK).scores]
    # The two scores are all that the control can be made of, twice each.
    low, high = torch.stack(elsewhere).amin(0), torch.stack(elsewhere).amax(0)
    assert torch.allclose((found.control_low + found.control_high) / 2, (low + high) / 2, atol=1e-5)
    # With their own answer for half of them, some head's would leave it.
    own = torch.stack([attribute_heads(bridge, *each, **QUICK).scores for each in (FRUIT, ANIMAL)])
    assert ((own < low - 1e-3) | (own > high + 1e-3)).any()


def test_edges_are_compared_with_other_answers_only(bridge):
    found = attribute_edges_over(bridge, TWINS, check=0, **QUICK)
    elsewhere = [attribute_edges(bridge, FRUIT[0], *ANIMAL[1:], check=0, **QUICK).scores]
    elsewhere += [attribute_edges(bridge, ANIMAL[0], *FRUIT[1:], check=0, **QUICK).scores]
    low, high = torch.stack(elsewhere).amin(0), torch.stack(elsewhere).amax(0)
    assert found.control == "labels"
    assert torch.allclose((found.control_low + found.control_high) / 2, (low + high) / 2, atol=1e-5)


def test_where_all_have_one_answer_there_is_no_control_and_a_warning_says_so(bridge):
    for attribute in (attribute_heads_over, attribute_edges_over):
        found = attribute(bridge, [FRUIT, FRUIT], control="labels", **QUICK)
        assert found.control == "none"
        assert not found.stands_out.any()
        assert "There is no control" in " ".join(found.warnings())


def test_few_other_answers_are_said_to_be_few(bridge):
    found = attribute_heads_over(bridge, [*TWINS, FRUIT], control="labels", **QUICK)
    assert "3 of 5 examples have the same target and foil" in " ".join(found.warnings())
    assert label_warnings(found.targets, found.foils, "heads") == []
    assert "no control" in " ".join(replace(found, control="none", targets=("a",) * 5, foils=("b",) * 5).warnings())


def test_the_same_two_words_exchanged_are_no_other_answer(bridge):
    """Their scores are those of the example with the other sign: an interval of them would control nothing."""
    exchanged = (FRUIT[0], FRUIT[2], FRUIT[1])
    for attribute in (attribute_heads_over, attribute_edges_over):
        found = attribute(bridge, [FRUIT, exchanged], control="labels", **QUICK)
        assert found.control == "none"
        assert "or these exchanged" in " ".join(found.warnings())
