"""Baselines, against cases worked by hand and the recorded values that are structural."""

import json
from pathlib import Path

import pytest

from synthetic_tasks import TASKS, Example, Row, baselines, generate, solve
from synthetic_tasks.baselines import BASELINES, FORMER, average

RECORDED = ["value-unif", "first", "middle", "last", "copy-unif", "shot-mode", "shot-last", "shot-unif"]


def read(line: str) -> Example:
    return solve(line).example()


CLASSES = read("< Ruth has a lime. Karen has a pear. John has a dog. >. John has a kind of animal")
OTHER = read("< Ruth has a lime. John has a dog. Ruth has a bus. >. Ruth does not have a kind of animal")
ORDINAL_SET = read("There are 2012, 2011, 2012. Which is different? The year just before 2012")
COPY = read("< Ruth has a lime. Karen has a pear. John has a dog. >. Who has dog? John")
SHOTS = ["animal", "fruit", "fruit", "drink"]


@pytest.mark.parametrize(
    ("baseline", "example", "shots", "expected"),
    [
        ("fact-unif", CLASSES, [], 1 / 3),
        ("value-unif", CLASSES, [], 1 / 2),  # lime and pear are one candidate answer
        ("value-unif", OTHER, [], 1 / 3),
        ("value-unif", ORDINAL_SET, [], 1 / 2),
        ("first", CLASSES, [], 0),
        ("middle", OTHER, [], 1),
        ("last", CLASSES, [], 1),
        ("copy-unif", CLASSES, [], 0),
        ("copy-unif", ORDINAL_SET, [], 2 / 3),  # next(2011) is the repeated item
        ("copy-unif", COPY, [], 1 / 3),
        ("shot-mode", CLASSES, SHOTS, 0),
        ("shot-mode", CLASSES, SHOTS[:2], 1 / 2),
        ("shot-last", CLASSES, SHOTS, 0),
        ("shot-last", CLASSES, SHOTS[:1], 1),
        ("shot-unif", CLASSES, SHOTS, 1 / 4),
        ("ignores negation", CLASSES, [], 1),
        ("ignores negation", OTHER, [], 0),
        ("ignores negation", ORDINAL_SET, [], 0),
        ("odd-one-out", CLASSES, [], 1 / 3),
        ("odd-one-out", OTHER, [], 1),
        ("odd-one-out", ORDINAL_SET, [], 1),
    ],
)
def test_worked_cases(baseline: str, example: Example, shots: list[str], expected: float) -> None:
    assert float(BASELINES[baseline](example, shots)) == pytest.approx(expected)


def test_middle_of_two_facts_is_not_defined() -> None:
    example = read("John has an apple. Mary has a dog. So John has a kind of fruit")
    assert BASELINES["middle"](example, []) is None
    assert "middle" not in baselines([Row("so-kind-of", (example,))])["so-kind-of"]


def test_structural_levels_on_generated_rows() -> None:
    table = baselines(row for task in TASKS for row in generate(task, 2, 0))
    negated = {task for task in TASKS if TASKS[task].grammar.pattern.negated}
    assert len(negated) == 46
    for task, levels in table.items():
        assert levels["fact-unif"] == pytest.approx(1 / 3)
        assert levels["odd-one-out"] == pytest.approx(1 if task in negated else 1 / 3)
        assert levels["ignores negation"] == (0 if task in negated else 1)
    assert average(table, table)["odd-one-out"] == pytest.approx((46 + 28 / 3) / 74)


def read_recorded(shared: Path) -> dict[str, dict[str, float]]:
    """The recorded table; the file has the names of version 0.1."""
    table = json.loads((shared / "data" / "tasks_baselines.json").read_text(encoding="utf-8"))
    return {task: {FORMER.get(name, name): level for name, level in levels.items()} for task, levels in table.items()}


def test_the_recorded_table(sample: list[Row], shared: Path) -> None:
    """The recorded values are of 12 rows, the sample has 4: equal where structural, else close on average."""
    recorded = read_recorded(shared)
    table = baselines(sample)
    for task, levels in table.items():
        assert set(levels) == set(recorded[task])
        for name in ("fact-unif", "ignores negation", "odd-one-out"):
            assert levels[name] == pytest.approx(recorded[task][name])
    for name in RECORDED:
        assert average(table, TASKS)[name] == pytest.approx(average(recorded, TASKS)[name], abs=0.01)


def test_generated_rows_have_the_recorded_levels(shared: Path) -> None:
    recorded = read_recorded(shared)
    table = baselines(row for task in TASKS for row in generate(task, 24, 3))
    for name in RECORDED:
        assert average(table, TASKS)[name] == pytest.approx(average(recorded, TASKS)[name], abs=0.012)
