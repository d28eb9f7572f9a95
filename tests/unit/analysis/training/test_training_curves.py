"""Curves are what the run recorded."""

from __future__ import annotations

import json

import pytest

import dcinterp
from dcinterp import UserError


def record(folder, **values):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(values) + "\n")


def test_reads_what_the_run_wrote(tmp_path):
    record(tmp_path, step=50, tokens=900, loss=3.0)
    record(tmp_path, step=60, tokens=1000, accuracy={"1": {"same-person": 0.5, "all": 0.25}})
    record(tmp_path, step=100, tokens=1800, loss=2.0)
    record(tmp_path, step=120, tokens=2000, accuracy={"1": {"same-person": 1.0, "all": 0.75}})
    curves = dcinterp.training_curves(tmp_path)
    assert curves.tokens_read.tolist() == [1000, 2000]
    assert curves.loss.tolist() == [3.0, 2.0]
    assert curves.accuracy[:, 0].tolist() == [[0.5, 0.25], [1.0, 0.75]]
    assert curves.to_dataframe()["pattern_label"].tolist() == ["same-person", "all"] * 2


@pytest.mark.parametrize("model", ["dcformer++", "transformer++"])
def test_the_shipped_models_come_with_theirs(model):
    curves = dcinterp.training_curves(model)
    sets = curves.patterns.index("different-in-set")
    assert curves.tokens_read[-1] > 10_000_000
    answers = {
        "different-in-set": 18,
        "same-person": 14,
        "the-other-person": 14,
        "same-object": 14,
        "the-other-object": 14,
    }
    measured = [row for row in curves.accuracy.flatten(0, 1) if not row.isnan().any()]
    assert len(measured) > 20
    for row in measured:
        mean = sum(share * float(row[curves.patterns.index(p)]) for p, share in answers.items()) / 74
        assert mean == pytest.approx(float(row[curves.patterns.index("all")]), abs=1e-6)
    assert curves.accuracy[0, 0, sets] < 0.5


def test_a_pattern_is_learnt_when_it_first_reaches_the_level_and_what_was_not_measured_is_empty(tmp_path):
    record(tmp_path, step=60, tokens=1000, accuracy={"1": {"same-person": 0.5, "all": 0.5}})
    record(tmp_path, step=120, tokens=2000, accuracy={"1": {"same-person": 0.9, "all": 0.9}, "8": {"same-person": 0.1}})
    record(tmp_path, step=180, tokens=3000, accuracy={"1": {"same-person": 0.7, "all": 0.7}, "8": {"same-person": 0.8}})
    curves = dcinterp.training_curves(tmp_path)
    assert curves.examples == (1, 8)
    assert curves.accuracy[:, 1, 0].isnan().tolist() == [True, False, False]
    table = curves.learnt(0.8).set_index(["examples", "pattern"])
    assert table.loc[(1, "same-person"), "tokens"] == 2000
    assert table.loc[(8, "same-person"), "step"] == 180
    assert table["tokens"].isna()[(8, "all")]


def test_reads_while_a_line_is_being_written(tmp_path):
    record(tmp_path, step=60, tokens=1000, accuracy={"1": {"same-person": 0.5, "all": 0.25}})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 120, "tok')
    assert dcinterp.training_curves(tmp_path).step.tolist() == [60]


def test_losses_of_a_run_on_text(tmp_path):
    record(tmp_path, step=50, tokens=900, loss=3.0)
    with pytest.raises(UserError, match="no held-out loss yet"):
        dcinterp.loss_curves(tmp_path)
    record(tmp_path, step=60, tokens=1000, validation_loss=3.5, bits_per_byte=5.0)
    record(tmp_path, step=120, tokens=2000, validation_loss=2.5, bits_per_byte=3.6)
    curves = dcinterp.loss_curves(tmp_path)
    assert curves.tokens_read.tolist() == [1000, 2000]
    assert curves.training_loss.tolist() == [3.0, 3.0]
    assert curves.validation_loss.tolist() == [3.5, 2.5]
    with pytest.raises(UserError, match=r"use dcinterp\.loss_curves"):
        dcinterp.training_curves(tmp_path)


def test_refuses_with_a_sentence(tmp_path):
    with pytest.raises(UserError, match="output folder of a training run"):
        dcinterp.training_curves(tmp_path)
    record(tmp_path, step=50, tokens=900, loss=3.0)
    with pytest.raises(UserError, match="no accuracy yet"):
        dcinterp.training_curves(tmp_path)
    record(tmp_path, step=60, tokens=1000, accuracy={"1": {"all": 0.25}})
    with pytest.raises(UserError, match="measured rows of 1"):
        dcinterp.figures.plot(dcinterp.training_curves(tmp_path), examples=8)


def test_a_measurement_has_the_loss_of_its_own_step(tmp_path):
    """A step's measurement is written before its loss."""
    record(tmp_path, step=50, tokens=900, validation_loss=3.5, accuracy={"1": {"all": 0.25}})
    record(tmp_path, step=50, tokens=900, loss=3.0)
    record(tmp_path, step=100, tokens=1800, validation_loss=2.5, accuracy={"1": {"all": 0.5}})
    record(tmp_path, step=100, tokens=1800, loss=2.0)
    assert dcinterp.training_curves(tmp_path).loss.tolist() == [3.0, 2.0]
    assert dcinterp.loss_curves(tmp_path).training_loss.tolist() == [3.0, 2.0]


def test_a_measurement_before_the_first_loss_is_kept(tmp_path):
    record(tmp_path, step=10, tokens=90, validation_loss=3.5)
    record(tmp_path, step=20, tokens=180, validation_loss=3.0)
    record(tmp_path, step=20, tokens=180, loss=2.9)
    curves = dcinterp.loss_curves(tmp_path)
    assert curves.validation_loss.tolist() == [3.5, 3.0]
    assert curves.training_loss.isnan().tolist() == [True, False]


def test_a_run_that_measured_nothing_is_one_sentence(tmp_path):
    record(tmp_path, step=10, tokens=90, accuracy={})
    with pytest.raises(UserError, match="holds no accuracy yet"):
        dcinterp.training_curves(tmp_path)
