"""One contract for every task there is: released, extra, or composed of the registered parts.

A new pattern, relation, domain or task is one entry; it is covered here without another line.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from synthetic_tasks import (
    EXTRA_TASKS,
    KINDS,
    TASKS,
    NoCounterfactual,
    Row,
    Task,
    baselines,
    counterfactuals,
    evaluate,
    find,
    generate,
    read_jsonl,
    solve,
    vocabulary,
    words,
    write_jsonl,
)
from synthetic_tasks import catalogue as catalogue_module
from synthetic_tasks.catalogue import compositions
from synthetic_tasks.domains import DOMAINS
from synthetic_tasks.patterns import PATTERNS
from synthetic_tasks.relations import RELATIONS
from synthetic_tasks.task import grammar_of

CATALOGUED = [*TASKS.values(), *EXTRA_TASKS.values()]
EVERYTHING = list(dict.fromkeys([*CATALOGUED, *compositions()]))


@pytest.mark.parametrize("task", EVERYTHING, ids=lambda task: task.id)
def test_generated_solved_written_and_corrupted(task: Task, tmp_path: Path) -> None:
    rows = generate(task, 3, seed=1)
    for row in rows:
        for example in row.examples:
            assert solve(example.released_text, task).example() == example
            assert solve(example.prompt, task).source == example.source
            assert example.spans.answer.of(example.text) == example.answer
    write_jsonl(rows, tmp_path / "rows.jsonl")
    assert read_jsonl(tmp_path / "rows.jsonl") == rows
    assert set(baselines(rows)) == {task.id}
    made = counterfactuals(rows[0].examples[0])
    assert set(made) == set(KINDS)
    assert not all(isinstance(each, NoCounterfactual) for each in made.values())
    for each in made.values():
        if not isinstance(each, NoCounterfactual):
            assert each.answer in solve(each.corrupt.prompt, each.corrupt.task_id).accepted


@pytest.mark.parametrize("task", EVERYTHING, ids=lambda task: task.id)
def test_evaluated(task: Task) -> None:
    torch = pytest.importorskip("torch")

    class Characters:
        """The smallest tokenizer there is, one token a character."""

        is_fast = False

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [min(ord(letter), 255) for letter in text]}

        def decode(self, ids: list[int]) -> str:
            return "".join(map(chr, ids))

    def oracle(ids: "torch.Tensor") -> "torch.Tensor":
        return torch.nn.functional.one_hot(ids.roll(-1, dims=1), 256).float()

    rows = generate(task, 1, seed=1, examples=3)
    result = evaluate(oracle, rows, tokenizer=Characters(), bootstrap=0)
    assert result.accuracy == 1
    assert result.records[0]["greedy"].strip() == rows[0].examples[2].answer


@pytest.mark.parametrize("task", CATALOGUED, ids=lambda task: task.id)
def test_words_lie_in_the_vocabulary(task: Task) -> None:
    known = set(vocabulary(include_extra=task.id in EXTRA_TASKS))
    assert all(set(words(row.text)) <= known for row in generate(task, 3, seed=2))


def test_every_registered_part_is_used() -> None:
    assert {task.qk for task in EVERYTHING} == set(PATTERNS)
    assert {task.relation for task in EVERYTHING} == set(RELATIONS)
    assert {task.domain for task in EVERYTHING} == set(DOMAINS)


def test_the_released_catalogue() -> None:
    assert list(TASKS) == [f"task{number}" for number in range(74)]
    assert len({(task.qk, task.relation, task.domain, task.surface) for task in TASKS.values()}) == 74
    assert len({task.partner for task in TASKS.values()}) == 28 + 9  # 70 = 72 and 71 = 73 take two for two
    assert not set(TASKS) & set(EXTRA_TASKS)
    with pytest.raises(TypeError):
        TASKS["task74"] = TASKS["task0"]  # type: ignore[index]


@pytest.fixture
def new_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[Task]:
    """A task added as a user would: one entry in the catalogue."""
    task = Task("so-just-after", "same-person", "ordinal->prev", "ordinal", "so", "so-just-after")
    monkeypatch.setattr(catalogue_module, "EXTRA_TASKS", {**EXTRA_TASKS, task.id: task})
    compositions.cache_clear()
    yield task
    compositions.cache_clear()


def test_one_entry_adds_a_task(new_task: Task, tmp_path: Path) -> None:
    assert find("so-just-after") is new_task
    assert new_task in compositions()
    (row,) = generate("so-just-after", 1, 0)
    assert solve(row.examples[0].prompt).task_id == "so-just-after"
    write_jsonl([row], tmp_path / "rows.jsonl")
    assert json.loads((tmp_path / "rows.jsonl").read_text())["task_id"] == "so-just-after"
    assert read_jsonl(tmp_path / "rows.jsonl") == [Row("so-just-after", row.examples)]
    assert grammar_of(new_task).question == "{asked} {predicate} the {unit} just after"


def test_the_sample_is_solved_and_written_back() -> None:
    path = Path(__file__).parents[2].parent / "shared" / "data" / "synthetic_dataset_rows0-3.jsonl"
    if not path.exists():
        pytest.skip("the released sample is not here")
    rows = read_jsonl(path)
    assert {row.task_id for row in rows} == set(TASKS)
    assert sum(len(row.examples) for row in rows) == 2368
