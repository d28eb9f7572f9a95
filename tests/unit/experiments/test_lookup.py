"""Questions, floors, ways and learning of `lookup` and of the experiments that share its scripts."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from experiment_scripts import FOLDER, command_of, script

from dcinterp.evidence import arm_circuits
from dcinterp.evidence.questions import lookup
from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import PuzzleSection
from dcinterp.train.control.experiment import Experiment, read_table
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.puzzles.lookup import Lookup


def test_questions_on_lookups_differ_in_what_the_change_says(tmp_path):
    """Read anew from the prompts: one item alone has the value, and the rule makes the answer of its letter."""
    source = PuzzleSource(PuzzleSection(**read_experiment(FOLDER / "lookup").config["data"]["puzzle"]), tmp_path)
    documents = {tuple(ids[:7].tolist()) for ids in source.held_out("seen", 80)["input_ids"]}
    rules, seen, (held, letter) = source.puzzle.rules(), source.puzzle.pairs("seen"), source.puzzle.table

    def meant_and_answer(prompt: str) -> tuple[int, str]:
        _, *facts, named, rule = prompt.split()
        (attribute, value), number = map(int, named.removeprefix("a").split("=")), int(rule.removeprefix("rule"))
        assert seen[attribute, number]
        items = [int(fact.removeprefix("item")) for fact in facts]
        assert len(set(letter[items])) == len(items)
        (item,) = [each for each in items if held[each, attribute] == value]
        return item, "ABCDEFGH"[rules[number][letter[item]]]

    found = lookup.questions(source, 20)
    assert [len(found[change]) for change in lookup.CHANGES] == [20] * 3
    for change, rows in found.items():
        for prompt, answer, other, its_answer in rows:
            assert tuple(source.tokenizer(prompt, add_special_tokens=False)["input_ids"]) in documents
            (item, own), (its_item, its_own) = meant_and_answer(prompt), meant_and_answer(other)
            assert (answer, its_answer) == (own, its_own)
            assert answer != its_answer
            (differs,) = [at for at, (a, b) in enumerate(zip(prompt.split(), other.split(), strict=True)) if a != b]
            assert (item == its_item) == (change == "relation")
            assert differs in {"item": [5], "relation": [6], "letter": [1, 2, 3, 4]}[change]


def test_a_lookup_without_its_attribute_is_right_in_a_quarter_or_a_little_more():
    module, experiment = script("lookup", "floors"), read_experiment(FOLDER / "lookup")
    puzzle = Lookup(**experiment.config["data"]["puzzle"]["options"])
    for part in puzzle.PARTS:
        random_letter, random_item, likeliest, random_relation = module.floors(puzzle, part, 2000).values()
        assert (random_letter, random_item) == (0.125, 0.25)
        assert 0.28 < likeliest < 0.32
        assert 0.2 < random_relation < 0.27


def test_the_relation_of_a_lookup_is_asked_against_one_half():
    module, experiment = script("lookup", "circuits"), read_experiment(FOLDER / "lookup")

    def told(share: float, seeds: int = 10) -> str:
        rows = [
            {"seed": seed, "change": change, "group": way, "share": share + 0.01 * seed}
            for seed in range(seeds)
            for change in lookup.CHANGES
            for way in module.WAYS
        ]
        return module.summary(pd.DataFrame(rows).assign(arm=module.ARM, part="seen"), experiment)

    assert "above zero in 10 of them; **supported**" in told(0.6)
    assert "above zero in 0 of them; **refuted**" in told(0.1)
    assert "interim, 9 of 10 seeds; no verdict" in told(0.6, seeds=9)


def asked(name: str) -> tuple[Experiment, Path, str]:
    """An experiment, its own or with other seeds, where what was measured of it is, and options of its commands."""
    folder, _, again = name.partition(" ")
    options = "" if folder == "lookup" else f" --folder experiments/{folder}"
    if not again:
        return read_experiment(FOLDER / folder), FOLDER / folder, options
    table = FOLDER / folder / f"{again}.csv"
    options += f" --table experiments/{folder}/{table.name}"
    return read_experiment(FOLDER / folder, table=table), table.with_suffix(""), options


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("lookup", "+0.49"),
        ("lookup_longer", "+0.50"),
        ("lookup_longer replication", "+0.50"),
        ("lookup_mechanisms", "+0.50"),
        ("lookup_mechanisms replication", "+0.50"),
    ],
)
def test_the_ways_through_models_of_lookups_are_those_of_the_tables(name, first):
    circuits, (experiment, folder, options) = script("lookup", "circuits"), asked(name)
    rows = pd.read_csv(folder / "circuits.csv")
    told = arm_circuits.summary(
        rows, experiment, lookup.CHANGES, command_of("lookup"), options, note=arm_circuits.TESTED
    )
    assert (folder / "more-circuits.md").read_text(encoding="utf-8") == told
    assert "no hypothesis hangs on it" not in told
    found = circuits.summary(rows, experiment, options)
    assert (folder / circuits.TEXT_FILE).read_text(encoding="utf-8") == found
    assert f"another *relation*: the share of *L0 -> L1 post weights* minus one half): {first}" in found


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("lookup", 60),
        ("lookup_longer", 60),
        ("lookup_longer replication", 60),
        ("lookup_mechanisms", 70),
        ("lookup_mechanisms replication", 70),
        ("lookup_schedule", 80),
        ("lookup_schedule replication", 80),
    ],
)
def test_what_lookups_learnt_over_training_is_that_of_the_tables(name, runs):
    """Every model is there, and its accuracy at the last step is that of the table of runs."""
    learning, (experiment, folder, options) = script("lookup", "learning"), asked(name)
    steps = pd.read_csv(folder / learning.TABLE)
    assert (folder / learning.TEXT_FILE).read_text(encoding="utf-8") == learning.summary(steps, experiment, options)
    final = read_table(experiment).query("stage == 'final'")
    ends = steps[steps["step"] == steps.groupby("arm")["step"].transform("max")]
    last = ends.merge(final, left_on=["arm", "seed"], right_on=["arm", "recipe.seed"])
    assert len(last) == len(final) == runs
    for part in ("seen", "held-out"):
        assert (last[part] - last[f"accuracy 1 {part}"]).abs().max() < 1e-4


def test_an_arm_that_still_learns_is_told_from_one_that_does_not():
    module, experiment = script("lookup", "learning"), read_experiment(FOLDER / "lookup")
    rows = [
        {"arm": arm, "seed": seed, "step": step, "seen": 0.96 if arm == "DCMHA" and step > 500 + seed else step / 4000}
        for arm in experiment.arms
        for seed in (0, 1)
        for step in range(250, 2001, 250)
    ]
    lines = module.summary(pd.DataFrame(rows), experiment).splitlines()
    (dcmha,), (plain,) = ([line for line in lines if line.startswith(f"| {arm} |")] for arm in ("DCMHA", "plain"))
    assert dcmha == "| DCMHA | 0.125 | 0.960 | 0.960 | 0.960 | +0.000 | 750 [750, 750] | 2 of 2 |  |"
    assert plain == "| plain | 0.125 | 0.250 | 0.375 | 0.500 | +0.125 | none | 0 of 2 | 2 of 2 |"


def test_an_arm_is_compared_with_ours_of_the_same_ending():
    module, experiment = script("lookup", "learning"), read_experiment(FOLDER / "lookup_schedule")
    first = {"DCMHA": 250, "DCMHA late": 750, "plain wider": 500, "plain wider late": 500}
    rows = [
        {"arm": arm, "seed": seed, "step": step, "seen": 0.96 if step >= first.get(arm, 1000) else 0.5}
        for arm in experiment.arms
        for seed in (0, 1)
        for step in range(250, 1001, 250)
    ]
    text = module.summary(pd.DataFrame(rows), experiment)
    assert "For other arms that end in *late*, *DCMHA late* stands for *DCMHA*." in text
    last = {line.split(" | ")[0].strip("| "): line.split(" | ")[-1].strip("| ") for line in text.splitlines()}
    assert (last["plain wider"], last["plain wider late"]) == ("2 of 2", "0 of 2")
    assert (last["talking heads"], last["talking heads late"]) == ("2 of 2", "2 of 2")
    assert (last["DCMHA"], last["DCMHA late"]) == ("", "")


def test_what_was_not_measured_over_training_is_said():
    """No accuracy was measured a quarter before the end; and of an arm without runs there is no table."""
    module, experiment = script("lookup", "learning"), read_experiment(FOLDER / "lookup")
    rows = [
        {"arm": arm, "seed": seed, "step": step, "seen": 0.5}
        for arm in experiment.arms
        for seed in (0, 1)
        for step in (1000, 2000)
    ]
    text = module.summary(pd.DataFrame(rows), experiment)
    assert "| plain |  | 0.500 |  | 0.500 | not measured | none | 0 of 2 | 0 of 2 |" in text
    with pytest.raises(UserError, match=r"of plain open of .* there are none"):
        module.summary(pd.DataFrame([row for row in rows if row["arm"] != "plain open"]), experiment)


def test_an_arm_that_lacks_a_seed_is_compared_in_the_others():
    module, experiment = script("lookup", "learning"), read_experiment(FOLDER / "lookup")
    rows = [
        {"arm": arm, "seed": seed, "step": step, "seen": 0.96 if arm == "DCMHA" else 0.5}
        for arm in experiment.arms
        for seed in range(3 if arm == "DCMHA" else 2)
        for step in range(250, 1001, 250)
    ]
    lines = module.summary(pd.DataFrame(rows), experiment).splitlines()
    assert next(line for line in lines if line.startswith("| plain |")).endswith("| none | 0 of 2 | 2 of 2 |")
    assert next(line for line in lines if line.startswith("| DCMHA |")).endswith("| 3 of 3 |  |")


def test_an_arm_that_comes_there_at_the_same_step_is_not_later():
    module, experiment = script("lookup", "learning"), read_experiment(FOLDER / "lookup")
    came = {"DCMHA": (1000, 750), "plain": (1000, 1000), "plain wider": (750, None)}
    rows = [
        {"arm": arm, "seed": seed, "step": step, "seen": 0.96 if to is not None and step >= to else 0.5}
        for arm in experiment.arms
        for seed, to in enumerate(came.get(arm, (None, None)))
        for step in range(250, 2001, 250)
    ]
    lines = module.summary(pd.DataFrame(rows), experiment).splitlines()
    earlier = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[-1].strip("| ") for line in lines if "+0.000" in line
    }
    assert earlier == {
        "plain": "1 of 2, 1 at the same step",
        "plain wider": "1 of 2",
        "plain with MLP": "2 of 2",
        "plain open": "2 of 2",
        "talking heads": "2 of 2",
        "DCMHA": "",
    }
