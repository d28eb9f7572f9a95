"""Held-out combinations of pattern and relation."""

import pytest

from synthetic_tasks import EXTRA_TASKS, TASKS, families, recombination_split


def test_the_74_have_31_combinations() -> None:
    """docs/tasks.md: four person patterns with six relations each, and sets with seven."""
    assert len(families()) == 4 * 6 + 7
    assert ("same-person", "copy") in families()


def test_both_surfaces_and_all_domains_of_a_combination_are_held_out() -> None:
    split = recombination_split([("same-person", "copy"), ("the-other-object", "city->country")])
    assert [task.id for task in split.test] == ["task10", "task11", "task20", "task21", "task26", "task27"]
    assert len(split.train) + len(split.test) == 74
    assert not {task.family for task in split.train} & set(split.holdout)
    assert {"same-person", "the-other-object"} <= {task.qk for task in split.train}
    assert {"copy", "city->country"} <= {task.relation for task in split.train}


def test_extra_tasks_can_take_part() -> None:
    pool = [*TASKS.values(), EXTRA_TASKS["so-kind-of"]]
    split = recombination_split([("same-person", "obj->superclass")], pool)
    assert [task.id for task in split.test] == ["task2", "task3", "so-kind-of"]


@pytest.mark.parametrize(
    ("holdout", "message"),
    [
        ([], "nothing is held out"),
        (
            [("same-person", "ordinal->prev")],
            "no task combines 'same-person' with 'ordinal->prev'; it has obj->superclass, copy, ",
        ),
        ([("same", "copy")], "no task combines 'same' with 'copy'; patterns are the-other-person, same-person"),
        (("same-person", "copy"), "'same-person' is no pair"),
        ([("different-in-set", "ordinal->prev")], "'ordinal->prev' would occur in no training task"),
        ([family for family in families() if family[0] == "same-person"], "'same-person' would occur in no"),
    ],
)
def test_what_could_not_be_recombined_is_refused(holdout: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recombination_split(holdout)
