"""`dcinterp experiment circuits` opens the models of any experiment on a puzzle, each once, and says what it found."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from dcinterp.cli import verbs
from dcinterp.evidence import pooled_edges
from dcinterp.evidence.circuits import circuits_text
from dcinterp.evidence.questions import ASKED, recombination
from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import read_config
from dcinterp.train.control import sweep
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.control.run_experiment import run_experiment
from dcinterp.train.data.puzzles import PUZZLES
from dcinterp.train.loop.run import train

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
    "arms": [{"name": "plain"}, {"name": "all heads", "model.changes.compose": "dynamic"}],
    "seeds": [0],
    "measures": {"accuracy 1 seen": "accuracy on pairs seen in training"},
    "solved": {"by": "accuracy 1 seen", "at": 0.001},
}


def test_every_puzzle_has_questions():
    assert set(ASKED) == set(PUZZLES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "experiments" / "small"
    made.mkdir(parents=True)
    (made / "experiment.yaml").write_text(yaml.safe_dump(TREE | {"output": str(tmp_path / "runs")}))
    return made


def test_models_of_every_arm_are_measured_once(folder, tmp_path, monkeypatch):
    """Of models that a few steps taught to say letters: any accuracy counts as learnt, and any preference will do."""
    monkeypatch.setattr(pooled_edges, "PREFERS", 0.0)
    monkeypatch.setattr(recombination, "DOCUMENTS", 8)
    monkeypatch.setattr(sweep, "train_there", lambda config, *others: train(read_config(config)) and "")
    table = folder / "again.csv"
    run_experiment(read_experiment(folder, table=table), seeds=[3])
    only, all_of = tmp_path / "one.md", tmp_path / "all.md"
    first = CliRunner().invoke(
        verbs,
        ["experiment", "circuits", str(folder), "--table", str(table), "--arm", "all heads", "--to", str(only)],
    )
    assert first.exit_code == 0, first.output
    assert "all heads, seed 3: measured" in first.stderr
    assert "plain" not in first.stderr
    command = "dcinterp experiment circuits experiments/small --table experiments/small/again.csv"
    assert f"    {command} --arm 'all heads'\n" in only.read_text()
    second = CliRunner().invoke(
        verbs, ["experiment", "circuits", str(folder), "--table", str(table), "--to", str(all_of)]
    )
    assert second.exit_code == 0, second.output
    assert "plain, seed 3: measured" in second.stderr
    assert "all heads" not in second.stderr
    text = all_of.read_text()
    assert f"    {command}\n" in text
    assert "1 of 1 seeds of all heads and 1 of 1 seeds of plain reach 0% on `seen`" in text
    assert "| L0 -> L1 query |" in text or "With one model there is none" in text
    rows = pd.read_csv(folder / "again" / "circuits.csv")
    assert set(rows["arm"]) == {"plain", "all heads"}
    assert set(rows["part"]) == {"seen", "held-out"}
    assert set(rows["change"]) == set(ASKED["recombination"].changes)


@pytest.mark.parametrize(
    ("change", "arms", "says"),
    [
        ({}, ["none"], "'none'"),
        ({}, None, "No run of .* has ended yet; start them with"),
        ({"solved": None}, None, "does not say when a model has learnt it"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(folder, change, arms, says):
    tree = {key: value for key, value in (TREE | change).items() if value is not None}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(tree | {"output": str(folder / "runs")}))
    with pytest.raises(UserError, match=says):
        circuits_text(folder, arms=arms)


def test_an_experiment_on_text_has_no_questions():
    with pytest.raises(UserError, match="trains on no puzzle"):
        circuits_text(Path("experiments/parts"))
