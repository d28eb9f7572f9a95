"""What warnings say of the number that is explained."""

from __future__ import annotations

import pytest

from dcinterp.mechanism.objective import mixed_metrics, other_answer


@pytest.mark.parametrize(
    ("answer", "target", "right", "said"),
    [
        (" food", " food", True, ""),
        ("food", "food", None, ""),
        ("food", "drink", None, 'answers "food", not "drink"'),
        (" food", " drink", False, 'answers "food", not "drink"'),
        (" food", "food", False, "two tokens that differ in their spaces"),
        ("food", " food", False, "two tokens that differ in their spaces"),
        ("food", "food", False, "another token of the same text"),
    ],
)
def test_another_answer_is_told_by_its_token(answer, target, right, said):
    found = other_answer(answer, target, right)
    assert said in found
    assert bool(found) == bool(said)


def test_logits_and_differences_of_logits_have_no_mean_without_a_word():
    assert mixed_metrics(("a", "b")) == mixed_metrics(("", "")) == mixed_metrics(()) == []
    (said,) = mixed_metrics(("a", "", "b"))
    assert said.startswith("1 of 3 examples have no foil")
