"""`dcinterp tasks` as a person types it."""

import json
from pathlib import Path

import pytest

from synthetic_tasks import TASKS, generate, read_jsonl, solve, write_jsonl

typer_testing = pytest.importorskip("typer.testing")
tasks_cli = pytest.importorskip("dcinterp.cli.tasks")

LINE = "< Ruth has a lime. Karen has a pear. John has a dog. >. John has a kind of"


def run(*arguments: str, code: int = 0, given: str | None = None) -> str:
    result = typer_testing.CliRunner().invoke(tasks_cli.app, list(arguments), input=given)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def test_list() -> None:
    listed = json.loads(run("list", "--json", "--extra"))
    assert [task["id"] for task in listed][:74] == list(TASKS)
    assert all(solve(task["example"], task["id"]).correct for task in listed)
    assert "[ " in run("list", "--tasks", "task3")


@pytest.mark.parametrize(
    ("selection", "ids"),
    [
        ("3", ["task3"]),
        ("2-4,task4,so-kind-of", ["task2", "task3", "task4", "so-kind-of"]),
        ("ordinal->prev", ["task72", "task73"]),
    ],
)
def test_selections(selection: str, ids: list[str]) -> None:
    assert [task.id for task in tasks_cli.chosen(selection)] == ids


def test_generate(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert "148 rows of 74 tasks" in run("generate", str(path), "--rows", "2", "--seed", "5")
    assert read_jsonl(path) == [row for task in TASKS for row in generate(task, 2, 5)]
    assert run("generate", "-", "--rows", "2", "--seed", "5") == path.read_text()


def test_generate_a_recombination_split(tmp_path: Path) -> None:
    for flags, count in (([], 72), (["--test"], 2)):
        path = tmp_path / "rows.jsonl"
        run("generate", str(path), "--rows", "1", "--holdout", "same-person:city->country", *flags)
        assert len(read_jsonl(path)) == count


def test_solve(tmp_path: Path) -> None:
    assert run("solve", LINE).startswith("animal  <- fact 3, same-person, obj->superclass, task2")
    assert "(right)" in run("solve", LINE + " [ animal ]")
    assert "(WRONG: fruit)" in run("solve", LINE + " fruit", code=1)
    assert "UNSOLVED" in run("solve", "hello", code=1)
    assert json.loads(run("solve", LINE, "--json"))[0]["accepted"] == ["animal"]
    write_jsonl(generate("task2", 1, 0), tmp_path / "rows.jsonl")
    assert run("solve", "--file", str(tmp_path / "rows.jsonl")).count("(right)") == 8
    assert "animal" in run("solve", "--file", "-", given=LINE + "\n")


def test_counterfactuals() -> None:
    made = json.loads(run("counterfactuals", LINE, "--json"))
    assert made["relation"]["accepted"] == ["dog"]
    assert "polarity" in run("counterfactuals", LINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "--tasks", "task99"), "no task is called 'task99'.*relations are adj->opposite, "),
        (("list", "--tasks", ","), "',' names no task; leave it empty for all"),
        (("generate", "x", "--holdout", "same-person"), "takes PATTERN:RELATION"),
        (("generate", "x", "--test"), "--test needs --holdout"),
        (("solve",), "give lines to solve"),
        (("evaluate", "x", "--output", __file__), "is a file"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(*arguments)


def test_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    dcinterp = pytest.importorskip("dcinterp")

    class Letters:
        """A model with a tokenizer of its own that has read the text already."""

        is_fast = False

        def __call__(self, text, add_special_tokens: bool = True, return_type: str = ""):
            if isinstance(text, str):
                return {"input_ids": [min(ord(letter), 255) for letter in text]}
            return torch.nn.functional.one_hot(text.roll(-1, dims=1), 256).float()

        def decode(self, ids: list[int]) -> str:
            return "".join(map(chr, ids))

    model = Letters()
    model.tokenizer = model
    monkeypatch.setattr(dcinterp, "load", lambda name, **options: model, raising=False)
    out = run("evaluate", "any", "--tasks", "0-3", "--rows", "1", "--output", str(tmp_path / "results"))
    assert "| the-other-person | 12 | 100.0 |" in out
    assert "any: 100.0 % of 24 answers" in out
    assert (tmp_path / "results" / "summary.json").exists()
    write_jsonl(generate("task9", 2, 0), tmp_path / "rows.jsonl")
    summary = json.loads(run("evaluate", "any", "--data", str(tmp_path / "rows.jsonl"), "--json"))
    assert summary["answers"] == 12
    with pytest.raises(ValueError, match="no rows of the chosen tasks"):
        run("evaluate", "any", "--data", str(tmp_path / "rows.jsonl"), "--tasks", "3")
