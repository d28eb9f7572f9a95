"""The shipped pair of the puzzle `pairing`: small, of its experiment, right, and with the ways that the tour tells."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

import dcinterp
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.train.config.recipe import read_config
from dcinterp.train.control.experiment import FINAL, find_experiments, read_experiment, read_table
from tests.unit.checkpoints.exchanged import answer_with

ARMS = {"dcformer++-pairing": "DCMHA", "transformer++-pairing": "plain"}
PROMPTS = json.loads((SHIPPED / "dcformer++-pairing" / "prompts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ARMS)
def test_it_is_the_first_seed_of_its_experiment(name):
    experiment = read_experiment(find_experiments()["pairing_routes"])
    run = experiment.run(FINAL, ARMS[name], {}, experiment.seeds[0])
    trained, asked = asdict(read_config(SHIPPED / name / "training.yaml")), asdict(run.config)
    assert asked["recipe"].pop("bf16") is None, "which a run decides by its device"
    assert not trained["recipe"].pop("bf16")
    assert trained == asked | {"output": trained["output"]}
    assert trained["output"] == f"runs/pairing_routes/{run.name}"
    row = read_table(experiment).set_index("name").loc[run.name]
    logged = map(json.loads, (SHIPPED / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    *_, last = (each["accuracy"]["1"] for each in logged if "accuracy" in each)
    assert last == {part: row[f"accuracy 1 {part}"] for part in ("seen", "held-out")}
    card = (SHIPPED / name / "README.md").read_text(encoding="utf-8")
    assert f"and {row['accuracy 1 held-out']:.2f} of the questions" in " ".join(card.split())


@pytest.mark.parametrize("name", ARMS)
def test_it_is_small_and_answers_the_prompts_that_come_with_it(name):
    assert sum(file.stat().st_size for file in (SHIPPED / name).iterdir()) < 2**19
    assert json.loads((SHIPPED / name / "prompts.json").read_text(encoding="utf-8")) == PROMPTS
    model = dcinterp.load(name)
    for each in PROMPTS:
        found = dcinterp.predict(model, each["prompt"], each["answer"])
        assert found.rank == 1
        assert not found.warnings()


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (2, 3), (3, 2)])
def test_the_rule_is_read_by_the_weights_after_the_softmax_alone(first, second):
    model = dcinterp.load("dcformer++-pairing")
    asked, other = PROMPTS[first], PROMPTS[second]
    post, pre = (answer_with(model, asked["prompt"], other["prompt"], stage) for stage in ("post", "pre"))
    assert (post, pre) == (other["answer"], asked["answer"])
