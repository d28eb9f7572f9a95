"""Reported seeds again at one rate: what ended is kept, and what failed is named."""

from __future__ import annotations

import re

import pandas as pd
import pytest
import yaml

from dcinterp.evidence import one_rate
from dcinterp.evidence.intervals import differences, share_difference
from dcinterp.support.errors import UserError
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.control.run_experiment import RunsFailed


def test_a_seed_that_lacks_an_arm_gives_no_difference():
    values = pd.DataFrame({"a": [0.5, None], "b": [0.7, 0.6], "c": [0.4, 0.4]}, index=[3, 4])
    with pytest.raises(UserError, match=r"Seeds \[4\] lack a run of one of a, b, c"):
        share_difference(values, ["a", "b"], ["c"])
    assert share_difference(values, ["b"], ["c"]).startswith("+0.250 [")


def test_differences_of_losses_are_not_bounded_as_those_of_shares(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2, 0.3], "more": [0.2, 0.3, 0.5]})
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"measures": {"bits_per_byte": "bits"}}))
    losses = pd.DataFrame({"plain": [5.0, 5.0, 5.0], "more": [6.8, 6.9, 7.1]})
    found = differences(read_experiment(folder), {"bits_per_byte": losses})
    assert found["H1"].startswith("+1.933 [+1.")


def test_runs_of_another_config_are_made_anew(tmp_path, write_experiment, monkeypatch):
    folder, table, made = write_experiment(tmp_path / "e", {"plain": [0.1], "more": [0.2]}), tmp_path / "rates.csv", []

    def run(sweep, **_):
        made.extend(sweep.runs)
        about = {"status": "done", one_rate.KEY: 0.5, "recipe.seed": 0, "loss": 1.0}
        value = float(sweep.runs[0].config.data.phases[0].steps)
        return pd.DataFrame([{"name": each.name, "accuracy 1 held-out": value} | about for each in sweep.runs])

    monkeypatch.setattr(one_rate, "run_sweep", run)
    for steps, count in ((2, 2), (2, 2), (3, 4)):
        file = folder / "experiment.yaml"
        file.write_text(re.sub(r"steps: \d+", f"steps: {steps}", file.read_text()))
        experiment = read_experiment(folder)
        extra = one_rate.train_missing(experiment, 0.5, 0, table, 1)
        assert len(made) == count
        values = one_rate.at_rate(experiment, 0.5, one_rate.all_runs(experiment, extra))
        assert values["accuracy 1 held-out"].to_numpy().tolist() == [[steps, steps]]


def test_a_run_that_failed_is_named_and_the_others_are_kept(tmp_path, write_experiment, monkeypatch):
    experiment = read_experiment(write_experiment(tmp_path / "e", {"plain": [0.1, 0.2], "more": [0.2, 0.3]}))
    table, measure = tmp_path / "rates.csv", next(iter(experiment.measures))

    def ended(failing):
        def run(sweep, **_):
            rows = [
                {"name": each.name, "status": "done", one_rate.KEY: 0.5, "recipe.seed": 0, measure: 0.4, "loss": 1.0}
                if failing not in each.name
                else {"name": each.name, "status": "failed", "message": "the loss is not finite"}
                for each in sweep.runs
            ]
            return pd.DataFrame(rows)

        return run

    monkeypatch.setattr(one_rate, "run_sweep", ended("more"))
    with pytest.raises(RunsFailed, match=r"1 of 2 runs failed, such as final,more,.* \(the loss is not finite\)"):
        one_rate.train_missing(experiment, 0.5, 0, table, 1)
    assert pd.read_csv(table)["arm"].tolist() == ["plain"]
    monkeypatch.setattr(one_rate, "run_sweep", ended(","))
    with pytest.raises(RunsFailed, match=r"1 of 1 runs failed"):
        one_rate.train_missing(experiment, 0.5, 0, table, 1)
    monkeypatch.setattr(one_rate, "run_sweep", ended("nothing"))
    assert one_rate.train_missing(experiment, 0.5, 0, table, 1)["arm"].tolist() == ["plain", "more"]
