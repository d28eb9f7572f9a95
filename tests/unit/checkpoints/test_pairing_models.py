"""The shipped pair of the puzzle `pairing`: small, of its experiment, right, and with the ways that the tour tells."""

from __future__ import annotations

import json

import pytest

import dcinterp
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.train.control.experiment_file import find_experiments, read_experiment
from tests.unit.checkpoints.shipped_puzzles import answer_with, card, first_seed

ARMS = {"dcformer++-pairing": "DCMHA", "transformer++-pairing": "plain"}
PROMPTS = json.loads((SHIPPED / "dcformer++-pairing" / "prompts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ARMS)
def test_it_is_the_first_seed_of_its_experiment(name):
    experiment = read_experiment(find_experiments()["pairing_routes"])
    _, held_out = first_seed(name, experiment, ARMS[name], {})
    assert f"and {held_out:.2f} of the questions" in card(name)


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
