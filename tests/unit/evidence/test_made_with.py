"""What a page says of how its runs were made: by the rows alone, and nothing of rows that do not have it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from dcinterp.evidence.made_with import made_with_line
from dcinterp.train.control.experiment import Experiment
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.loop.metrics_file import made_with

TREE = {
    "title": "Does it?",
    "config": {
        "model": {"preset": "tiny-dcformer++", "changes": {"num_hidden_layers": 1}},
        "data": {"phases": [{"source": "pairs", "steps": 2, "batch_size": 4}]},
    },
    "arms": [{"name": "all"}],
    "seeds": [1, 2],
    "measures": {"loss": "loss"},
    "about": [],
}
ROW = {"torch": "2.13.0+cpu", "device": "cpu", "commit": "0123456789ab", "data_digest": "123e4"}


@pytest.fixture
def table(tmp_path: Path):
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(TREE))
    experiment = read_experiment(tmp_path)

    def make(name: str, *changes: dict[str, str] | None) -> Experiment:
        """An experiment with a table of two runs; None is a row of before."""
        rows = []
        for seed, change in zip((1, 2), changes, strict=True):
            run = experiment.run("final", "all", {}, seed)
            row = {"stage": "final", "arm": "all", "name": run.name, "status": "done", **run.keys, "loss": 1.0}
            rows.append(row if change is None else row | ROW | change)
        pd.DataFrame(rows).to_csv(tmp_path / name, index=False)
        return replace(experiment, table=tmp_path / name)

    return make


def test_one_way_is_one_sentence(table):
    assert made_with_line(table("one.csv", {}, {})) == (
        "Trained with PyTorch 2.13.0+cpu, on cpu, at commit 0123456789ab of dcinterp, by the table's rows. "
        "All of these read the same text or images (digest 123e4)."
    )


def test_rows_of_before_say_nothing_and_are_counted(table):
    assert made_with_line(table("none.csv", None, None)) == ""
    assert "by the table's rows of 1 of the 2 runs." in made_with_line(table("one.csv", None, {}))
    before = table("before.csv", {"device": "", "commit": ""}, {"device": "", "commit": ""})
    assert made_with_line(before).startswith("Trained with PyTorch 2.13.0+cpu, by the table's rows.")


def test_runs_that_were_made_side_by_side_say_so():
    starts = [{"step": 0, "device": "cuda:0", "stacked": 4, "torch": "2"}, {"step": 5, "device": "cpu", "torch": "2"}]
    assert made_with(starts) == {"torch": "2", "device": "stacked:cuda:0 cpu"}


def test_a_start_of_before_is_not_told_as_a_later_one_and_lost_ones_not_at_all():
    old, new = {"step": 0, "torch": "1"}, {"step": 4, "torch": "2", "device": "cpu", "commit": "c"}
    assert made_with([old, new]) == {"torch": "1 2"}
    assert made_with([old, new, new | {"step": 0}]) == {"torch": "2", "device": "cpu", "commit": "c"}
    assert made_with([]) == {}


def test_whatever_differs_is_named(table):
    said = made_with_line(
        table("two.csv", {"device": "cpu cuda:0"}, {"device": "cpu", "commit": "b" * 12 + "+", "data_digest": "7"})
    )
    assert "on cpu, cuda:0, at commits 0123456789ab, bbbbbbbbbbbb+ of dcinterp (+: its code was changed since)," in said
    assert "They read 2 texts or sets of images" in said


def test_other_seeds_are_compared_with_the_first_in_what_they_read(table):
    again = table("again.csv", {}, {})
    assert made_with_line(again, table("same.csv", {}, {})).endswith("(digest 123e4), as the first seeds did.")
    other = table("other.csv", {"data_digest": "7"}, {"data_digest": "7"})
    assert made_with_line(again, other).endswith("(digest 123e4). The first seeds read 7.")
    assert made_with_line(again, table("before.csv", None, None)).endswith("(digest 123e4).")
