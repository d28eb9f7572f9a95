"""What is said of circuits by the scripts of several experiments, of other seeds and where nothing was learnt."""

from __future__ import annotations

from functools import partial

import pandas as pd
import pytest
from experiment_scripts import FOLDER, command_of, script

from dcinterp.evidence import arm_circuits
from dcinterp.evidence.questions import asked_of, pairing
from dcinterp.evidence.trained_models import read_measured
from dcinterp.train.control.experiment import read_table
from dcinterp.train.control.experiment_file import read_experiment


@pytest.mark.parametrize(
    "asked", ["find_block", "pairing", "compositional_recall", "recombination", "recombination_heads"]
)
def test_the_words_on_circuits_of_other_seeds_are_those_of_the_table(asked):
    folder, module = FOLDER / asked, script(asked, "circuits")
    place, table = folder / "replication", folder / "replication.csv"
    rows, experiment = pd.read_csv(place / "circuits.csv"), read_experiment(folder, table=table)
    told = getattr(module, "summary", partial(arm_circuits.summary, changes=module.CHANGES, command=command_of(asked)))
    option = f" --table experiments/{asked}/replication.csv"
    assert (place / "more-circuits.md").read_text(encoding="utf-8") == told(rows, experiment, options=option)
    final = pd.read_csv(table).query("stage == 'final'")
    keys = ["arm", "seed"], ["arm", "recipe.seed"]
    accuracy = rows.drop_duplicates(["arm", "seed"]).merge(final, left_on=keys[0], right_on=keys[1])
    assert len(accuracy) == {"find_block": 10, "recombination": 50, "recombination_heads": 60}.get(asked, len(final))
    if hasattr(module, "arms_asked"):
        assert set(rows["arm"]) == set(module.arms_asked(experiment))
    assert (accuracy["seen"] - accuracy["accuracy 1 seen"]).abs().max() < 0.005, "these are the models of the table"


def test_the_words_on_circuits_by_the_command_are_those_of_the_table():
    table = FOLDER / "birth" / "replication.csv"
    rows, experiment = read_measured(table.with_suffix("") / "circuits.csv"), read_experiment(table.parent, table=table)
    command = "dcinterp experiment circuits experiments/birth --table experiments/birth/replication.csv"
    told = arm_circuits.summary(rows, experiment, asked_of(experiment).changes, command, note=arm_circuits.NEUTRAL)
    assert (table.with_suffix("") / "more-circuits.md").read_text(encoding="utf-8") == told
    models = rows.drop_duplicates(["arm", "seed"]).set_index(["arm", "seed"])["seen"]
    runs = read_table(experiment).set_index(["arm", "recipe.seed"])["accuracy 1 seen"]
    assert len(models) == len(runs) == 20
    assert (models - runs).abs().max() < 0.005, "these are the models of the table"


@pytest.mark.parametrize("asked", ["find_block", "pairing"])
def test_models_none_of_which_learnt_it_make_no_tables(asked):
    module, experiment = script(asked, "circuits"), read_experiment(FOLDER / asked)
    arms = ("multi-token", "plain") if asked == "find_block" else ("plain", "DCMHA")
    rows = pd.DataFrame([{"arm": arm, "seed": seed, "seen": 0.5} for arm in arms for seed in (0, 1)])
    told = getattr(module, "summary", partial(arm_circuits.summary, changes=pairing.CHANGES, command=command_of(asked)))
    text = told(rows, experiment)
    assert (
        "0 of 2 seeds reach 95%" if asked == "find_block" else "0 of 2 seeds of plain and 0 of 2 seeds of DCMHA"
    ) in text
    assert "| edges |" not in text


@pytest.mark.parametrize(
    ("name", "code"), [("lookup", "circuits"), ("pairing_routes", "routes"), ("recombination_heads", "circuits")]
)
def test_verdicts_on_models_none_of_which_learnt_it_conclude_nothing(name, code):
    module, experiment = script(name, code), read_experiment(FOLDER / name)
    arms = module.arms_asked(experiment) if name == "recombination_heads" else list(experiment.arms)
    rows = pd.DataFrame([{"arm": arm, "seed": seed, "seen": 0.5} for arm in arms for seed in experiment.seeds])
    text = module.summary(rows, experiment)
    assert "0 of 10 models could be asked; fewer than" in text
    assert not any(f"**{word}**" in text for word in ("supported", "refuted", "open"))
