"""Statistics of generated rows against the tables of the released file, within sampling error."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from math import sqrt
from pathlib import Path

import pytest
from task_rules import group

from synthetic_tasks import TASKS, Example, Row, generate
from synthetic_tasks.domains.object import CLASSES
from synthetic_tasks.lexicon import MALE_NAMES, NAMES

ROWS = 150


def rows_of(tasks: Iterable[str | int]) -> list[Row]:
    return [row for task in tasks for row in generate(task, ROWS, seed=11)]


def examples_of(*tasks: int) -> list[Example]:
    return [example for row in rows_of(tasks) for example in row.examples]


def assert_shares(counts: Counter, expected: dict, sigmas: float = 4.5) -> None:
    """Every count lies within a few standard deviations of its expected share."""
    total = counts.total()
    assert set(counts) <= set(expected)
    for value, share in expected.items():
        spread = sqrt(total * share * (1 - share)) + 1
        assert abs(counts[value] - total * share) < sigmas * spread, (value, counts[value], total * share)


def uniform(values: Iterable) -> dict:
    values = list(values)
    return {value: 1 / len(values) for value in values}


def test_source_group_is_uniform_over_classes() -> None:
    for task in (0, 2, 6):
        examples = examples_of(task)
        counts = Counter(group("object", example.facts[example.source].item) for example in examples)
        # Two uses of an answer at most make the counts narrower than independent draws, never wider.
        assert_shares(counts, uniform(CLASSES))


def test_distractors_are_uniform_over_words() -> None:
    """Two distractors share a class in about 12 of 96 (docs/tasks.md: 15, 7, 15)."""
    shared = Counter()
    examples = examples_of(0, 2, 6)
    for example in examples:
        one, other = (group("object", fact.item) for place, fact in enumerate(example.facts) if place != example.source)
        shared[one == other] += 1
    assert 0.10 < shared[True] / len(examples) < 0.17


def test_names_and_genders() -> None:
    examples = examples_of(2, 10)
    assert_shares(Counter(fact.person for example in examples for fact in example.facts), uniform(NAMES))
    examples = examples_of(8)
    assert_shares(Counter(example.asked in MALE_NAMES for example in examples), {True: 0.5, False: 0.5})


def test_source_position_patterns() -> None:
    rows = rows_of(["task2", "task40", "task48", "task56"])
    patterns = Counter(
        tuple(sorted(Counter(example.source for example in row.examples).values(), reverse=True)) for row in rows
    )
    assert_shares(patterns, {(3, 3, 2): 242 / 441, (4, 2, 2): 199 / 441})
    assert_shares(Counter(example.source for row in rows for example in row.examples), uniform(range(3)))


@pytest.mark.parametrize(
    ("tasks", "counts"),
    [
        ((0, 4, 8, 12, 32, 36), {"does not have": 20, "does not possess": 26, "does not own": 26}),
        ((2, 6, 10, 14, 34, 38), {"has": 15, "possesses": 33, "owns": 24}),
        ((18, 22, 26, 30), {"wants to go to": 15, "wants to visit": 15, "yearns for": 11, "longs for": 7}),
        ((50, 54), {"appeared": 10, "showed up": 8, "arrived": 6}),
        ((48, 52), {"did not show up": 11, "did not arrive": 7, "did not appear": 6}),
    ],
)
def test_predicates(tasks: tuple[int, ...], counts: dict[str, int]) -> None:
    drawn = Counter(row.examples[0].predicate for row in rows_of(tasks))
    assert_shares(drawn, {name: count / sum(counts.values()) for name, count in counts.items()})


def test_units_are_uniform_and_vary_in_a_row() -> None:
    rows = rows_of(["task48", "task54", "task70"])
    units = uniform(["year", "month", "day", "season", "time"])
    assert_shares(Counter(example.unit for row in rows for example in row.examples), units)
    assert {len({example.unit for example in row.examples}) for row in rows} >= {3, 4, 5}


def test_the_answer_is_among_the_facts_as_often_as_in_the_file() -> None:
    """docs/tasks.md: 34 and 32 of 96 in tasks 48 and 50; 18, 23, 18, 14 of 96 in tasks 70 to 73."""
    for tasks, low, high in (((48, 50), 0.24, 0.44), ((70, 71, 72, 73), 0.13, 0.26)):
        examples = examples_of(*tasks)
        share = sum(example.answer in [fact.item for fact in example.facts] for example in examples) / len(examples)
        assert low < share < high


def test_double_opposites_are_a_free_draw() -> None:
    drawn = Counter(
        example.answer for example in examples_of(40, 42, 68) if example.facts[example.source].item == "happy"
    )
    assert_shares(drawn, {"sad": 0.5, "unhappy": 0.5})


def occurrences(domain: str, rows: int, seed: int) -> Counter[str]:
    """How often each word is a fact item in the even tasks of a domain, as the released tables count."""
    counts: Counter[str] = Counter()
    for number in range(0, 74, 2):
        if TASKS[f"task{number}"].domain == domain:
            for row in generate(number, rows, seed):
                counts.update(fact.item for example in row.examples for fact in example.facts)
    return counts


@pytest.mark.parametrize(
    ("domain", "title"),
    [
        ("object", "**Object -> superclass"),
        ("tool", "**Object (tool) -> capability"),
        ("city", "**City -> country"),
    ],
)
def test_word_counts_of_the_released_file(shared: Path, domain: str, title: str) -> None:
    """The released counts are a plausible draw of this generator: same total, chi-square per word near 1.

    Not exactly 1: the file reuses some facts between tasks and counts repeated words twice.
    """
    text = (shared / "tasks.md").read_text(encoding="utf-8").split(title)[1]
    cells = [line.strip("|").split("|")[2].strip() for line in text.split("\n\n")[1].splitlines()[2:]]
    released = {word: int(count) for cell in cells for word, count in re.findall(r"(.+?) (\d+)(?:, |$)", cell)}
    expected = occurrences(domain, rows=120, seed=5)
    assert set(released) == set(expected)
    assert 10 * sum(released.values()) == expected.total()
    chi_square = sum((released[word] - count / 10) ** 2 / (count / 10) for word, count in expected.items())
    assert chi_square / (len(released) - 1) < 2.2


def test_sample_has_the_statistics_it_is_compared_with(sample: list[Row]) -> None:
    """The same measures on the released sample: group-uniform sources, word-uniform sets."""
    share: Callable[[float], bool] = lambda x: 0.2 < x < 0.45  # noqa: E731
    small = {"insect", "musical instrument", "sport"}  # 3 of 10 classes, but 9 of 92 words
    sources = [e for row in sample if row.task_id in ("task0", "task2", "task6") for e in row.examples]
    assert share(sum(group("object", e.facts[e.source].item) in small for e in sources) / len(sources))
    sets = [e for row in sample if row.task_id in ("task56", "task58", "task12") for e in row.examples]
    drawn = [e.facts[place].item for e in sets for place in (e.source, (e.source + 1) % 3)]
    assert sum(group("object", word) in small for word in drawn) / len(drawn) < 0.2
