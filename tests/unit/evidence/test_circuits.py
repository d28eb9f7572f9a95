"""`dcinterp experiment circuits` opens the models of any experiment on a puzzle, each once, and says what it found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from dcinterp.cli import verbs
from dcinterp.evidence import pooled_edges
from dcinterp.evidence.circuits import circuits_text
from dcinterp.evidence.questions import ASKED, recombination
from dcinterp.evidence.trained_models import read_measured
from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import read_config
from dcinterp.train.control import sweep
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.control.run_experiment import run_experiment
from dcinterp.train.data.puzzles import PUZZLES
from dcinterp.train.loop.run import train

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"
CHANGES = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 0}
TREE = {
    "title": "Which?",
    "config": {
        "model": {"preset": "tiny-transformer++", "changes": CHANGES},
        "data": {
            "puzzle": {"name": "recombination", "options": {"questions": 1}},
            "phases": [{"source": "puzzle", "steps": 40, "batch_size": 8, "score": "answer"}],
        },
        "recipe": {"threads": 1, "learning_rate": 0.02},
        "log_every": 10,
        "evaluation": {"every": 40, "validation_rows": 4, "watch": False},
    },
    "arms": [{"name": "1"}, {"name": "all heads", "model.changes.compose": "dynamic"}],
    "seeds": [0],
    "measures": {"accuracy 1 seen": "accuracy on pairs seen in training"},
    "solved": {"by": "accuracy 1 seen", "at": 0.001},
}


def test_every_puzzle_has_questions():
    assert not (missing := set(PUZZLES) - set(ASKED)), f"add a file to dcinterp/evidence/questions for {missing}"
    assert set(ASKED) == set(PUZZLES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "experiments" / "small"
    made.mkdir(parents=True)
    (made / "experiment.yaml").write_text(yaml.safe_dump(TREE | {"output": str(tmp_path / "runs")}))
    return made


@pytest.fixture
def asked(folder, monkeypatch) -> Path:
    """An experiment with two models, which a few steps taught to say letters: any accuracy counts as learnt."""
    monkeypatch.setattr(pooled_edges, "PREFERS", 0.0)
    monkeypatch.setattr(recombination, "DOCUMENTS", 8)
    monkeypatch.setattr(sweep, "train_there", lambda config, *others: train(read_config(config)) and "")
    run_experiment(read_experiment(folder, table=folder / "again.csv"), seeds=[3])
    return folder


def test_a_change_that_no_document_allows_is_left_out_and_said(asked, monkeypatch):
    """As where the facts of a document have all letters, so that none can have another."""
    every = recombination.questions
    known = ASKED["recombination"]
    gone = next(reversed(known.changes))
    monkeypatch.setattr(
        recombination,
        "questions",
        lambda source, part, change, count: [] if change == gone else every(source, part, change, count),
    )
    text = circuits_text(asked, asked / "again.csv", said=lambda line: None)
    assert f"Not asked: *{gone}* (no document of these options allows it, or" in text
    assert f"- *{gone}*" not in text
    assert all(f"- *{each}*" in text for each in known.changes if each != gone)


def test_models_of_a_table_that_was_moved_are_named(asked):
    moved = asked / "moved.csv"
    shutil.move(asked / "again.csv", moved)
    with pytest.raises(UserError, match=r"in .*moved-\w+, as seen .* or train .* --seeds 3 --table NEW.csv"):
        circuits_text(asked, moved)
    assert not moved.with_suffix("").exists()
    shutil.move(moved, asked.parent / "again.csv")
    with pytest.raises(UserError, match=r"If the table was moved, its runs may be in .*again-\w+; move them to"):
        circuits_text(asked, asked.parent / "again.csv")


def test_models_of_every_arm_are_measured_once_and_those_asked_for_are_told(asked, tmp_path):
    table, to = asked / "again.csv", tmp_path / "said.md"

    def told(*arms: str) -> tuple[str, list[str]]:
        options = [word for arm in arms for word in ("--arm", arm)]
        done = CliRunner().invoke(
            verbs, ["experiment", "circuits", str(asked), "--table", str(table), *options, "--to", str(to)]
        )
        assert done.exit_code == 0, done.output
        return to.read_text(), [line for line in done.stderr.splitlines() if "measured" in line]

    command = f"    dcinterp experiment circuits {asked} --table {table}"
    text, measured = told("1")
    assert measured == ["1, seed 3: measured"]
    assert f"{command} --arm 1\n" in text
    assert "1 of 1 seeds of 1 reach 0% on `seen`" in text
    text, measured = told()
    assert measured == ["all heads, seed 3: measured"]
    assert f"{command}\n" in text
    assert "1 of 1 seeds of 1 and 1 of 1 seeds of all heads reach 0%" in text
    assert "### all heads\n\nOn `seen`, 1 model, right in" in text
    text, measured = told("all heads")
    assert measured == []
    assert f"{command} --arm 'all heads'\n" in text
    assert "Of seeds 3 to 3 1 of 1 seeds of all heads reach 0%" in text
    rows = read_measured(asked / "again" / "circuits.csv")
    assert set(rows["arm"]) == {"1", "all heads"}
    assert set(rows["part"]) == {"seen", "held-out"}
    assert set(rows["change"]) == set(ASKED["recombination"].changes)
    rows[rows["arm"] == "1"].to_csv(asked / "again" / "circuits.csv", index=False)
    (gone,) = (asked.parent.parent / "runs").rglob("*all-heads*/model")
    shutil.rmtree(gone)
    text, measured = told()
    assert measured == []
    assert "The models of 1 more run are not there, and were not asked." in text
    with pytest.raises(
        UserError, match=r"no trained models of all heads in .* --table NEW\.csv, a file that is not there"
    ):
        circuits_text(asked / "experiment.yaml", table, ["all heads"])


@pytest.mark.parametrize(
    ("change", "arms", "says"),
    [
        ({}, ["none"], "'none'"),
        ({"arms": [{"name": "one"}, {"name": "other", "data.puzzle.name": "lookup"}]}, None, "have several puzzles"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence_and_leaves_nothing(folder, change, arms, says):
    (folder / "experiment.yaml").write_text(yaml.safe_dump(TREE | change | {"output": str(folder / "runs")}))
    (folder / "again.csv").write_text("")
    with pytest.raises(UserError, match=says):
        circuits_text(folder, folder / "again.csv", arms)
    assert not (folder / "again").exists()


def test_a_puzzle_without_questions_and_models_that_are_gone_are_told(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where birth was never trained
    with pytest.raises(UserError, match="has ended yet; start them with"):
        circuits_text(folder)
    with pytest.raises(UserError, match=r"models of plain, DCMHA in .*/runs/birth, as seen .* train some with"):
        circuits_text(EXPERIMENTS / "birth")
    monkeypatch.delitem(ASKED, "recombination")
    with pytest.raises(UserError, match="'recombination' have no questions yet"):
        circuits_text(folder)


def test_an_experiment_on_text_has_no_questions():
    with pytest.raises(UserError, match="trains on no puzzle"):
        circuits_text(EXPERIMENTS / "parts")


def test_a_table_of_something_else_is_none_of_what_was_measured(tmp_path):
    (tmp_path / "table.csv").write_text("name,loss\na,1\n")
    with pytest.raises(UserError, match="has no column 'arm'"):
        read_measured(tmp_path / "table.csv")
