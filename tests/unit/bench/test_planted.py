"""The bench of methods: its numbers by hand, and rows that are made once."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from dcinterp.bench.planted import (
    METHODS,
    Mean,
    measure,
    measure_one,
    rank_correlation,
    settings_of,
    specimen_of,
    summarise,
    top_few,
)
from dcinterp.bench.planted_page import findings, page_of
from dcinterp.bench.row_file import read_rows, write_rows
from dcinterp.bench.trained_truth import Draws, train_truth
from dcinterp.planted import circuits
from dcinterp.planted.fixtures import FOLDER, stated_of, trained
from dcinterp.planted.stated import Hop, Stated
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Cancelled


def test_numbers_by_hand():
    scores, labels = torch.tensor([9.0, 8, 7, 6, 6, 1]), torch.tensor([1, 0, 1, 1, 0, 0], dtype=torch.bool)
    assert top_few(scores, labels) == pytest.approx(2 / 3)  # of the three highest two are true
    assert top_few(scores, labels, few=2) == 0.5
    tied = torch.tensor([9.0, 5, 5, 5, 0, 0])
    assert top_few(tied, labels, few=2) == pytest.approx((1 + 2 / 3) / 2)  # one place left, two of three tied are true
    assert rank_correlation(scores, scores * 3) == pytest.approx(1)
    assert rank_correlation(scores, torch.zeros(6)) == 0
    from scipy.stats import spearmanr

    other = torch.tensor([3.0, 1, 1, 7, 0, 5])
    assert rank_correlation(scores, other) == pytest.approx(spearmanr(scores, other).statistic)


@pytest.fixture(scope="module")
def planted():
    return specimen_of("share-by-kp heads=8", 0, prompts=2)


def test_a_specimen_has_its_truth_and_exact_patching_finds_it(planted):
    assert planted.right == 1
    assert len(planted.places) == 8 + 2 * 64 + 2 * 8  # skip, two projections, two gates of layer 1
    assert planted.labels.sum() == 1
    effects = planted.effects
    assert effects[planted.labels].abs().min() > 5
    assert effects[~planted.labels].abs().max() < 1e-3
    found = measure_one(planted, "exact patching")
    assert (found["auroc"], found["top5"], found["rank"]) == (1, 1, 1)
    assert found["cmd"] < 0.01 < 0.99 < found["cpr"]
    assert found["forward"] >= len(planted.places)
    assert found["backward"] == 0
    # One edge among so many: a random order needs half of them until it has it.
    assert measure_one(planted, "random")["cmd"] > 0.1
    assert measure_one(planted, "EAP")["backward"] == 1


def test_every_method_answers_and_a_rerun_makes_no_row_twice(tmp_path):
    file = tmp_path / "rows.jsonl"
    wanted = [("lookup-post-kp", 0)]
    told = []
    assert measure(wanted, file, prompts=2, progress=lambda *a: told.append(a)) == 1
    assert told == [(1, 1, "lookup-post-kp")]
    assert measure(wanted, file, prompts=2) == 0
    (row,) = read_rows(file)
    assert list(row["methods"]) == list(METHODS)
    # A method that came later is measured alone.
    known = {name: numbers for name, numbers in row["methods"].items() if name != "random"}
    write_rows(file, [row | {"methods": known}])
    with pytest.raises(UserError, match="has rows of 2 prompts a model, not of 6; give the same, or another file"):
        measure(wanted, file, prompts=6)
    assert measure(wanted, file, prompts=2) == 1
    assert list(read_rows(file)[0]["methods"]) == list(METHODS)
    assert read_rows(file)[0]["prompts"] == 2
    assert {name: read_rows(file)[0]["methods"][name] for name in known} == known
    for method in ("exact patching", "gates + RelP", "EAP-IG", "edge IG"):
        assert row["methods"][method]["auroc"] > 0.95, method
    assert row["methods"]["random"]["auroc"] < 0.9
    assert row["true"] == 2


def test_the_page_says_what_fails():
    def row(setting, seed, **auroc):
        numbers = dict.fromkeys(("top5", "rank", "cmd", "cpr", "seconds", "forward", "backward"), 0.5)
        methods = {method: numbers | {"auroc": value} for method, value in auroc.items()}
        own = {"key": f"{setting} seed={seed}", "setting": setting, "seed": seed, "prompts": 4}
        return own | {"right": 1.0, "methods": methods}

    rows = [
        row("chain", 0, EAP=0.8, gates=1.0),
        row("chain", 1, EAP=0.9, gates=1.0),
        row("backup", 0, EAP=0.6, gates=0.7),
    ]
    found = summarise(rows)
    assert found["chain"]["EAP"]["auroc"].value == pytest.approx(0.85)
    assert findings(found) == [
        "**EAP** is below 0.95 on 2 of 2 settings: backup (0.60), chain (0.85).",
        "**gates** is below 0.95 on 1 of 2 settings: backup (0.70).",
        "No method reaches 0.95 on backup.",
    ]
    # A row that a newer method has not been measured on yet counts for the others.
    part = summarise([rows[0], rows[1] | {"methods": {"EAP": rows[1]["methods"]["EAP"]}}])["chain"]
    assert (part["EAP"]["auroc"].n, part["gates"]["auroc"].n) == (2, 1)
    text = page_of(rows)
    assert "| EAP | 0.72" in text.replace("0.73", "0.72")  # 0.725, rounded either way
    assert "2 settings (3 models" in text
    assert "--seeds 2 --prompts 4" in text
    assert str(Mean(0.5, 0.25, 0.75, 4)) == "0.50 (0.25-0.75)"


def test_everything_known_is_asked_for():
    wanted = settings_of()
    assert {setting.split()[0] for setting, _ in wanted} == {*circuits(), *trained()}
    assert wanted == [*dict.fromkeys(wanted)]


TINY = Stated("tiny", "lookup", (Hop(0, "post", "kp", 0, 1),), layers=1, heads=2, width=16)


def test_training_goes_on_where_it_stopped_and_can_be_cancelled(tmp_path, monkeypatch):
    from dcinterp.bench import trained_truth

    monkeypatch.setattr(trained_truth, "EVERY", 3)
    monkeypatch.setattr(trained_truth, "BATCH", 16)

    def stop(*told):
        raise Cancelled

    with pytest.raises(Cancelled):
        train_truth(TINY, tmp_path, steps=300, progress=stop)
    record = json.loads((tmp_path / "circuit.json").read_text(encoding="utf-8"))
    assert record["steps"] == 3
    assert Stated.from_json(json.dumps({k: v for k, v in record.items() if k not in ("marks", "steps")})) == TINY
    steps = []
    marks = train_truth(TINY, tmp_path, steps=4, progress=lambda done, *_: steps.append(done))
    assert steps == [4]
    assert not marks.reached


def test_what_is_outside_is_everything_but_the_circuit():
    from dcinterp.bench.trained_truth import new_model
    from dcinterp.bridge import wrap
    from dcinterp.mechanism.circuit_run import CircuitRun
    from dcinterp.planted.stated import words_of_stated

    run = CircuitRun(wrap(new_model(TINY), words_of_stated()))
    draws = Draws(TINY, run, 0)
    names = [name for name, out in zip(run.graph.names, draws.outside.tolist(), strict=True) if not out]
    assert set(names) == {*TINY.edges(), *TINY.inside()}
    ids, others, gates, answers = draws.training(64)
    assert ids.shape == others.shape == (64, 6)
    inside = [p for p, out in enumerate(draws.outside.tolist()) if not out and run.graph.edges[p].kind == "stream"]
    assert gates[:, inside].min() == 1, "the stream between the circuit's own nodes is not patched"
    assert len(answers) == 64


def test_a_training_that_was_stopped_gives_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("dcinterp.bench.trained_truth.EVERY", 1)
    monkeypatch.setattr("dcinterp.bench.trained_truth.BATCH", 16)
    train_truth(TINY, tmp_path / "whole", steps=3)

    def stop(*told):
        raise Cancelled

    for _ in range(3):
        with pytest.raises(Cancelled):
            train_truth(TINY, tmp_path / "parts", steps=3, progress=stop)
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    with pytest.raises(UserError, match="holds the training of another circuit"):
        train_truth(replace(TINY, seed=TINY.seed + 1), tmp_path / "parts", steps=4)
    (tmp_path / "parts" / "state.pt").write_bytes(b"cut")
    with pytest.raises(UserError, match="cannot be read; remove it to begin again"):
        train_truth(TINY, tmp_path / "parts", steps=4)


def test_a_model_that_has_reached_its_marks_stays(tmp_path):
    folder, name = tmp_path / "finished", trained()[0]
    shutil.copytree(FOLDER / name, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert train_truth(stated_of(name), folder, steps=1).reached
    with pytest.raises(UserError, match="holds the model of another circuit; choose another folder"):
        train_truth(TINY, folder, steps=1)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "circuit.json").write_text("[]")
    with pytest.raises(UserError, match=r"circuit\.json cannot be read"):
        train_truth(TINY, folder, steps=1)


def test_rows_of_another_measurement_are_left_alone(tmp_path):
    file = tmp_path / "edges.jsonl"
    write_rows(file, [{"key": "a", "family": "b"}])
    kept = file.read_bytes()
    with pytest.raises(UserError, match=r"Line 1 of .*edges\.jsonl is no row of this measurement"):
        measure([("lookup-post-kp", 0)], file, prompts=2)
    assert file.read_bytes() == kept
