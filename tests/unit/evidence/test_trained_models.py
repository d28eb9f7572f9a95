"""What is asked of trained models counts whole answers, and is kept beside the table of their runs."""

from __future__ import annotations

import re

import pandas as pd
import pytest
import torch

from dcinterp.evidence.trained_models import (
    TrainedModels,
    measure_missing,
    read_measured,
    right_answers,
    trained_models,
    with_all_arms,
)
from dcinterp.support.errors import UserError
from dcinterp.train.control.experiment import NoRunsYet, digest, read_table, reported_runs
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.data.batches import NOT_SCORED


def test_an_answer_of_several_tokens_is_right_as_a_whole():
    """Two answers of two tokens; of the second one token alone is right."""
    ids = torch.tensor([[1, 5, 6, 2, 7, 8]])
    labels = torch.tensor([[NOT_SCORED, 5, 6, NOT_SCORED, 7, 8]])
    said = torch.tensor([[5, 6, 0, 7, 9, 0]])
    logits = torch.nn.functional.one_hot(said, 10).float()
    assert right_answers(lambda _: logits, {"input_ids": ids, "labels": labels}) == pytest.approx(0.5)


def test_differences_are_of_the_seeds_that_every_arm_has(tmp_path, write_experiment):
    experiment = read_experiment(write_experiment(tmp_path / "e", {"plain": [0.1, 0.2, 0.3], "more": [0.2, 0.3, 0.1]}))
    pairs = [("plain", 0), ("more", 0), ("plain", 1), ("more", 2), ("plain", 2)]
    rows = pd.DataFrame(pairs, columns=["arm", "seed"])
    assert with_all_arms(rows, experiment)["seed"].tolist() == [0, 0, 2, 2]
    with pytest.raises(UserError, match=r"No seed of .* has a trained model of every arm"):
        with_all_arms(rows[rows["arm"] == "plain"], experiment)


@pytest.fixture
def measured(tmp_path, write_experiment):
    """Measures the models of an experiment, whose rows say of what config they are, and counts how many it opened."""
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2], "more": [0.2, 0.3]})
    file, opened = folder / "experiment.yaml", []
    file.write_text(file.read_text() + f"output: {tmp_path / 'runs'}\n")

    def measure(arms=("plain", "more"), meanwhile=lambda: None, steps=2):
        file.write_text(re.sub(r"steps: \d+", f"steps: {steps}", file.read_text()))
        experiment = read_experiment(folder)
        table = read_table(experiment)
        runs = {run.name: run for run in experiment.tuning_runs() + experiment.final_runs(table)}
        table["digest"] = [digest(runs[name]) for name in table["name"]]
        table.to_csv(experiment.table, index=False)
        for name in runs:
            (experiment.output / name / "model").mkdir(parents=True, exist_ok=True)

        def look(arm, model):
            meanwhile()
            opened.append((arm, model.parent.name[-1]))
            return [{"share": float(steps)}]

        rows = measure_missing(experiment, arms, tmp_path / "measured.csv", look, lambda line: None)
        return [tuple(row) for row in rows[["arm", "seed", "share"]].to_numpy()], opened

    return measure


def test_models_that_were_made_anew_are_measured_anew(measured):
    whole = [("plain", 0, 2.0), ("plain", 1, 2.0), ("more", 0, 2.0), ("more", 1, 2.0)]
    for _ in range(2):
        rows, opened = measured()
        assert rows == whole
        assert len(opened) == 4, "once each"
    rows, opened = measured(["plain"], steps=3)
    assert rows == [("plain", 0, 3.0), ("plain", 1, 3.0)]
    assert len(opened) == 6
    rows, opened = measured(steps=3)
    assert sorted(rows) == sorted((arm, seed, 3.0) for arm, seed, _ in whole)
    assert len(opened) == 8


def test_rows_of_runs_that_are_out_of_their_table_stay(measured, tmp_path):
    measured()
    results, file = tmp_path / "e" / "results.csv", tmp_path / "measured.csv"
    runs, rows = pd.read_csv(results), pd.read_csv(file)
    runs[~runs["name"].str.endswith("plain,learning_rate=0.001,seed=1")].to_csv(results, index=False)
    rows[(rows["arm"] != "more") | (rows["seed"] != 0)].to_csv(file, index=False)
    measured()
    kept = pd.read_csv(file)
    assert sorted(zip(kept["arm"], kept["seed"], strict=True)) == [("more", 0), ("more", 1), ("plain", 0), ("plain", 1)]


def test_two_that_measure_at_once_keep_the_rows_of_each_other(measured):
    rows, _ = measured(["plain"], meanwhile=lambda: measured(["more"]))
    assert rows == [("plain", 0, 2.0), ("plain", 1, 2.0)]
    rows, opened = measured()
    assert len(opened) == 4
    assert sorted(rows) == [("more", 0, 2.0), ("more", 1, 2.0), ("plain", 0, 2.0), ("plain", 1, 2.0)]


def test_two_that_measure_one_model_count_it_once(measured, tmp_path):
    inner: list[int] = []

    def meanwhile():
        if not inner:
            inner.append(1)
            measured(["plain"])

    rows, _ = measured(["plain"], meanwhile)
    assert sorted(rows) == [("plain", 0, 2.0), ("plain", 1, 2.0)]
    assert len(read_measured(tmp_path / "measured.csv")) == 2


def test_runs_that_count_are_none_without_a_table(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1], "more": [0.2]})
    (folder / "results.csv").unlink()
    experiment = read_experiment(folder)
    assert not len(read_table(experiment).query("stage == 'final'"))
    with pytest.raises(NoRunsYet, match=r"No run of .* has ended yet"):
        reported_runs(experiment)


def test_what_is_measured_of_another_table_gets_a_folder_beside_it(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2]})
    assert trained_models(folder, folder) == TrainedModels(read_experiment(folder), folder, "")
    again = folder / "again.csv"
    with pytest.raises(UserError, match=r"There is no table .*; dcinterp experiment run .* --table .* makes"):
        trained_models(folder, folder, again)
    again.write_text((folder / "results.csv").read_text())
    found = trained_models(folder, folder, again)
    assert found.place == folder / "again"
    assert found.place.is_dir()
    assert found.options == " --table experiments/e/again.csv"
    assert found.experiment.table == again
    assert trained_models(folder, tmp_path, again).options == " --folder experiments/e --table experiments/e/again.csv"
    bare = folder / "bare"
    bare.write_text(again.read_text())
    with pytest.raises(UserError, match="needs an ending"):
        trained_models(folder, folder, bare)
