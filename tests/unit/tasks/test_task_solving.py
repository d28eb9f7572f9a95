"""The solver against the released lines, generated ones, and lines it must refuse."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthetic_tasks import EXTRA_TASKS, TASKS, Row, UnsolvableLine, generate, read_jsonl, solve, write_jsonl
from synthetic_tasks.catalogue import compositions
from synthetic_tasks.dataset import parse_row


def test_every_line_of_the_sample(sample_path: Path) -> None:
    """Found without being told the task, with the answer taken away, and answered as the file answers."""
    solved = 0
    for record in map(json.loads, sample_path.read_text(encoding="utf-8").splitlines()):
        for shot, line in enumerate(record["texts"].strip("\n").split("\n")):
            solution = solve(line)
            assert record["task_id"] in solution.task_ids
            assert solution.source is not None
            assert solution.correct
            assert solution.bracketed == (shot >= 2)
            bare = solve(solution.prompt)
            assert bare.given is None
            assert bare.correct is None
            assert (bare.source, bare.accepted) == (solution.source, solution.accepted)
            solved += 1
    assert solved == 2368


def test_the_sample_is_written_back_byte_for_byte(sample: list[Row], sample_path: Path, tmp_path: Path) -> None:
    write_jsonl(sample, tmp_path / "copy.jsonl")
    assert (tmp_path / "copy.jsonl").read_bytes() == sample_path.read_bytes()


@settings(max_examples=150, deadline=None)
@given(task=st.sampled_from([*TASKS, *EXTRA_TASKS]), seed=st.integers(0, 2**63))
def test_generated_examples_are_recovered_from_their_text(task: str, seed: int) -> None:
    (row,) = generate(task, 1, seed)
    for example in row.examples:
        for text in (example.text, example.released_text):
            assert solve(text, task).example() == example
        anywhere = solve(example.prompt)
        assert task in anywhere.task_ids
        assert anywhere.accepted == example.accepted


@pytest.mark.parametrize(
    ("line", "pattern", "transformation", "source", "accepted"),
    [
        # Worked by hand from the sentences, one per pattern and kind of answer.
        (
            "< Karen has sheep. Deborah has meat. Jeff has a basketball. >. Who has a kind of sport?",
            "same-object", "obj->superclass", 2, ("Jeff",),
        ),
        (
            "< The grenade is Ronald's. The costume is Ronald's. The lime is Maria's. >. Ronald does not own",
            "the-other-person", "copy", 2, ("lime",),
        ),
        (
            "< Happy Laura. Correct Christopher. Short Paul. >. Laura is the opposite of",
            "same-person", "adj->opposite", 0, ("sad", "unhappy"),
        ),
        (
            "< Mark is friendly. Kevin is boring. Kenneth is boring. >. Who is not the opposite of interesting? Mark",
            "the-other-object", "adj->opposite", 0, ("Mark",),
        ),
        (
            "There are 9 o'clock, 11 o'clock, 9 o'clock. Which is different? The time just after [ 10 o'clock ]",
            "different-in-set", "ordinal->prev", 1, ("10 o'clock",),
        ),
        (
            "There are Washington, D.C, Rome, Washington, D.C. Which is not Washington, D.C? The city in",
            "different-in-set", "city->country", 1, ("Italy",),
        ),
        (
            "There are pencils, pencils, a piano. Which is not pencil? The thing that can play",
            "different-in-set", "obj->capability", 2, ("play",),
        ),
        (
            "There are a sweater, an elephant, a shirt. Which is not clothing? The elephant",
            "the-other-class", "obj->superclass", 1, ("elephant",),
        ),
        (
            "There are big, unhealthy, ill. Which is different? The opposite of",
            "different-meaning", "synonym->opposite", 0, ("small", "little"),
        ),
        ("John has an apple. Mary has a dog. So John has a kind of", "same-person", "obj->superclass", 0, ("fruit",)),
        # Not in any catalogue, but made of known parts.
        (
            "< Ruth arrived in 2011. Mary arrived in 2014. John arrived in 2016. >. Mary arrived the year just after",
            "same-person", "ordinal->prev", 1, ("2013",),
        ),
    ],
)  # fmt: skip
def test_worked_lines(line, pattern, transformation, source, accepted) -> None:
    solution = solve(line)
    assert (solution.pattern, solution.transformation) == (pattern, transformation)
    assert (solution.source, solution.accepted) == (source, accepted)
    assert solution.correct is not False


FACTS = "< Ruth has a lime. Karen has a pear. John has a dog. >. "


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "it has 0 facts, and a task like it"),
        ("< Ruth has a dragon. ", "its facts cannot be read from 'Ruth has a dragon. '"),
        ("< Ruth has a lime. Karen has an pear. ", "cannot be read from 'Karen has an pear. '"),
        (FACTS + "Ruth eats lime", "no task asks 'Ruth eats lime' about object facts"),
        (FACTS + "Ruth has dragon", "no task asks 'Ruth has dragon'"),
        (FACTS + "Steven has lime", "no fact answers 'Steven has'"),
        ("< Ruth arrived in 2010. Mary arrived in May. John arrived in 2011. >. Ruth arrived the year just before",
         "its items are of the units"),
        ("< Ruth arrived in May. Mary arrived in June. John arrived in July. >. Ruth arrived the year just before",
         "its question of 'year'"),
        ("< Ruth arrived in 2010. Mary arrived in 2012. John arrived in 2011. >. Ruth arrived the year just after",
         "ordinal->prev is not defined on '2010'"),
    ],
)  # fmt: skip
def test_refused_lines_are_named_with_their_reason(line: str, reason: str) -> None:
    with pytest.raises(UnsolvableLine, match="cannot solve") as failure:
        solve(line)
    assert reason in failure.value.reason
    assert repr(line) in str(failure.value)


def test_a_wrong_answer_is_solved_and_called_wrong() -> None:
    solution = solve(FACTS + "John has a kind of fruit")
    assert solution.accepted == ("animal",)
    assert solution.given == "fruit"
    assert solution.correct is False
    assert solution.example().answer == "animal"


def test_an_ambiguous_question_accepts_all_answers() -> None:
    solution = solve(FACTS + "John does not have")
    assert solution.sources == (0, 1)
    assert solution.source is None
    assert solution.accepted == ("lime", "pear")


def test_the_source_of_an_ambiguous_line_is_the_fact_of_its_answer() -> None:
    line = "< Ruth has a cow. John has a dog. Karen has a uniform. >. Who owns a kind of animal?"
    for name in ("Ruth", "John"):
        made = solve(f"{line} {name}").example()
        assert (made.answer, made.facts[made.source].person) == (name, name)


def test_a_line_of_two_tasks_names_both() -> None:
    line = "There are a piano, a car, a piano. Which is not piano? The"  # both words are objects and tools
    assert solve(line).task_ids == ("task56", "task64")
    assert solve(line, "task64").task_id == "task64"


def test_compositions_hold_all_catalogued_tasks() -> None:
    assert set(compositions()) >= {*TASKS.values(), *EXTRA_TASKS.values()}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "line 2: not JSON"),
        ('{"task_id": "task0"}', "line 2: needs an object with the keys task_id and texts"),
        ('{"task_id": 5, "texts": "x"}', "line 2: task_id must be text"),
        ('{"task_id": "task2", "texts": ["x"]}', "line 2: texts must be text"),
        (f'{{"task_id": {"[" * 100_000}', "line 2: not JSON"),
        ("\udcff", "line 2 is not UTF-8"),
        ('{"task_id": "task999", "texts": "x"}', "no task is called 'task999'"),
        ('{"task_id": "task2", "texts": "\\nhello\\n"}', "cannot solve 'hello'"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, record: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    write_jsonl(generate("task2", 1, 0), path)
    path.write_text(path.read_text() + record + "\n", encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=message):
        read_jsonl(path)


def test_wrong_answers_and_layouts_in_a_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    (row,) = generate("task10", 1, 0)
    first, second = row.examples[0].answer, row.examples[2]
    for old, new, message in (
        (f" {first}\\n", " uniform\\n", "should be answered with"),
        (f"[ {second.answer} ]", second.answer, "not in the released layout"),
    ):
        write_jsonl([row], path)
        path.write_text(path.read_text().replace(old, new, 1))
        with pytest.raises(ValueError, match=message):
            read_jsonl(path)


def test_a_task_is_not_another_of_itself() -> None:
    solution = solve("< Ruth has a lime. John has a dog. Karen has a pear. >. John does not have")
    assert solution.source is None
    assert len(set(solution.task_ids)) == len(solution.task_ids)


def test_a_row_has_the_id_that_its_task_has() -> None:
    row = generate("task56", 1, 0)[0]
    assert parse_row("56", row.text).task_id == "task56"
