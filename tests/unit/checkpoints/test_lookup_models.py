"""The shipped pair of the puzzle `lookup`: small, of its experiment, and with the way that its page tells."""

from __future__ import annotations

import json

import pytest

import dcinterp
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.train.config.recipe import read_config
from dcinterp.train.control.experiment import read_table
from dcinterp.train.control.experiment_file import find_experiments, read_experiment
from dcinterp.train.data.puzzles.lookup import Lookup
from tests.unit.checkpoints.shipped_puzzles import answer_with, card, first_seed

ARMS = {"dcformer++-lookup": "DCMHA", "transformer++-lookup": "plain wider"}
COMPOSED, PLAIN = ARMS
PROMPTS = json.loads((SHIPPED / COMPOSED / "prompts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ARMS)
def test_it_is_the_first_seed_of_its_experiment(name):
    experiment = read_experiment(find_experiments()["lookup"])
    chosen = experiment.choose(read_table(experiment))[ARMS[name]]
    seen, held_out = first_seed(name, experiment, ARMS[name], chosen)
    assert f"It answers {seen:.2f} of 2,048 questions" in card(name)
    assert f"and {held_out:.2f} of those that it leaves out" in card(name)


@pytest.mark.parametrize("name", ARMS)
def test_it_is_small_and_comes_with_prompts_of_its_puzzle(name):
    assert sum(file.stat().st_size for file in (SHIPPED / name).iterdir()) < 2**19
    assert json.loads((SHIPPED / name / "prompts.json").read_text(encoding="utf-8")) == PROMPTS
    puzzle = Lookup(**read_config(SHIPPED / name / "training.yaml").data.puzzle.options)
    held, letter = puzzle.table
    for each in PROMPTS:
        *facts, named, relation = each["prompt"].split()
        attribute, value = map(int, named.removeprefix("a").split("="))
        (item,) = [i for i in (int(fact.removeprefix("item")) for fact in facts) if held[i, attribute] == value]
        assert each["answer"] == "ABCDEFGH"[puzzle.rules()[int(relation.removeprefix("rule")), letter[item]]]


def test_the_composed_one_answers_them_and_the_plain_one_does_not():
    right = {
        name: [dcinterp.predict(model, each["prompt"], each["answer"]).rank == 1 for each in PROMPTS]
        for name, model in ((name, dcinterp.load(name)) for name in ARMS)
    }
    assert all(right[COMPOSED])
    assert not all(right[PLAIN])


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (2, 3), (3, 2)])
def test_the_relation_is_read_by_the_weights_after_the_softmax_alone(first, second):
    model = dcinterp.load(COMPOSED)
    asked, other = PROMPTS[first], PROMPTS[second]
    post, pre = (answer_with(model, asked["prompt"], other["prompt"], stage) for stage in ("post", "pre"))
    assert (post, pre) == (other["answer"], asked["answer"])
