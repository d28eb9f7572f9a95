"""Verdicts and words of the experiments that leave tasks out of the 74."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from experiment_scripts import FOLDER, script

from dcinterp.analysis.training.compare_arms import ArmComparison
from dcinterp.evidence.trained_models import folder_option
from dcinterp.evidence.verdicts import comparison
from dcinterp.support.errors import UserError
from dcinterp.train.control.experiment import read_table
from dcinterp.train.control.experiment_file import read_experiment

HELD_OUT = {f"task{number}" for number in (4, 5, 18, 19, 32, 33, 54, 55, 68, 69)}
"""Tasks that `recombination_tasks` trains no model on."""


@pytest.mark.parametrize(
    "asked",
    [
        "recombination_tasks",
        "recombination_tasks_two_heads",
        "recombination_tasks_eight_heads",
        "recombination_tasks_mechanisms",
        "recombination_tasks_mechanisms_two_heads",
    ],
)
@pytest.mark.parametrize("name", ["by_combination", "circuits"])
def test_the_words_on_the_tasks_are_those_of_the_tables(name, asked):
    module, folder = script("recombination_tasks", name), FOLDER / asked
    if name == "circuits" and not (folder / "circuits.yaml").exists():
        assert not (folder / module.TABLE).exists(), "its protocol gives no such command"
        return
    rows, experiment = pd.read_csv(folder / module.TABLE), read_experiment(folder)
    option = folder_option(folder, FOLDER / "recombination_tasks")
    options = {"options": option} if option and name == "by_combination" else {}
    assert (folder / module.TEXT_FILE).read_text(encoding="utf-8") == module.summary(rows, experiment, **options)


def test_other_seeds_have_no_words_on_the_first_above_their_ways():
    module, folder = script("recombination_tasks", "circuits"), FOLDER / "recombination_tasks_two_heads"
    rows, experiment = pd.read_csv(folder / module.TABLE), read_experiment(folder)
    option = " --folder there --table there/replication.csv"
    text = module.summary(rows, replace(experiment, table=folder / "replication.csv"), option)
    assert "circuits.py --folder there --table there/replication.csv\n" in text
    assert "protocol.md, *With other seeds*" in " ".join(text.split())
    assert "seeds 90 and 97" not in text


def test_seeds_in_which_no_arm_learnt_the_tasks_make_no_row():
    module, folder = script("recombination_tasks", "by_combination"), FOLDER / "recombination_tasks"
    rows, experiment = pd.read_csv(folder / module.TABLE), read_experiment(folder)
    text = module.summary(rows, replace(experiment, solved_at=1.01))
    assert "In no\nseed has every arm 101% of the tasks seen." in text
    assert "nan" not in text


def test_the_conditions_of_a_gain_are_compared_before_they_are_rounded():
    module, folder = script("recombination_tasks", "conditions"), FOLDER / "recombination_tasks_eight_heads"
    rows, experiment = pd.read_csv(folder / module.MEASURED), read_experiment(folder)
    text = module.summary(rows, experiment)
    # By hand, of the first seeds: the mean without the three that are far, which their page has.
    assert "These have more: 101 (0.742), 105 (0.755), 107 (0.745)." in text
    assert "| the others | 7 | 0.4994 | 0.4595 | +0.0399 |" in text
    assert "| learnt, at least 4 seeds | 0 of 10, no |" in text
    assert text.count("no such seed") == 3
    hypothesis = experiment.hypotheses[0]
    every = pd.DataFrame(
        {"arm": arm, "seed": seed, "right": right, "odd fact": odd}
        for arm, rights in {"DCMHA": (0.3334, 0.9), "plain wider": (0.2333, 0.6)}.items()
        for seed in range(5)
        for odd, right in zip((0.4, 0.6), rights, strict=True)
    )
    seen = pd.DataFrame({"DCMHA": [0.95] * 4 + [0.9], "plain wider": [0.96] * 5})
    found = module.column_of(every, seen, hypothesis, 0.95)
    assert found[0] == "4 of 5, yes"
    assert found[2] == "+0.2001, yes"
    assert found[3] == "+0.1001, yes", "more than half"
    assert found[5] == "0.3334, yes", "just more than 1/3"
    every.loc[(every["arm"] == "DCMHA") & (every["odd fact"] == 0.4), "right"] = 0.3333
    assert module.column_of(every, seen, hypothesis, 0.95)[5] == "0.3333, no"
    every["right"] = 0.5
    assert module.column_of(every, seen, hypothesis, 0.95)[1:3] == ["+0.0000, no", "+0.0000"]


def test_what_is_on_the_tasks_seen_needs_the_table_of_the_runs_alone(tmp_path: Path):
    """As where the models were lost before their combinations were asked."""
    folder, table = FOLDER / "recombination_tasks_eight_heads", tmp_path / "again.csv"
    shutil.copy(folder / "results.csv", table)
    command = [sys.executable, str(FOLDER / "recombination_tasks" / "conditions.py"), "--folder", str(folder)]
    refused = subprocess.run([*command, "--table", str(table)], capture_output=True, text=True, timeout=120)
    assert refused.returncode != 0
    assert "by_combination.py" in refused.stderr
    given = subprocess.run([*command, "--table", str(table), "--seen"], capture_output=True, text=True, timeout=120)
    assert "| the others | 7 | 0.4994 | 0.4595 | +0.0399 |" in given.stdout, given.stderr
    assert "Conditions of a gain" not in given.stdout
    assert (tmp_path / "again" / "more-conditions.md").read_text(encoding="utf-8") in given.stdout


def test_where_all_or_none_are_far_on_the_tasks_seen_there_is_one_row():
    module = script("recombination_tasks", "conditions")
    hypothesis = read_experiment(FOLDER / "recombination_tasks_eight_heads").hypotheses[1]
    for share, where in ((0.5, "None has more."), (0.7, "All have more: 0 (0.700), 1 (0.700).")):
        text = module.on_seen(pd.DataFrame({"DCMHA": [share] * 2, "plain wider": [0.4] * 2}), hypothesis)
        assert where in text
        assert "nan" not in text
        assert text.count("| 2 |") == 1


@pytest.mark.parametrize(
    "of", [("recombination_tasks", "by_combination"), ("recombination_tasks_mechanisms", "leans_on")]
)
def test_a_seed_without_one_model_is_left_out_of_what_lies_beside(of):
    """As where a run diverged, or its folder was lost."""
    module, folder = script(*of), FOLDER / "recombination_tasks_mechanisms_two_heads"
    rows, experiment = pd.read_csv(folder / "by_combination.csv"), read_experiment(folder)
    seeds = sorted(rows["seed"].unique())
    text = module.summary(rows[(rows["seed"] != seeds[0]) | (rows["arm"] != "DCMHA")], experiment)
    assert "nan" not in text
    assert text == module.summary(rows[rows["seed"] != seeds[0]], experiment)
    assert (f"over {len(seeds) - 1}\nseeds" in text) == (of[1] == "by_combination")
    assert f"| {seeds[0]} |" not in text


def test_the_words_on_heads_are_those_of_three_tables():
    module = script("recombination_tasks_eight_heads", "heads")
    text = module.summary()
    assert (FOLDER / "recombination_tasks_eight_heads" / module.TEXT_FILE).read_text(encoding="utf-8") == text
    assert "| 2 | 10 of 10 | 4 | 2.8% | " in text
    assert "| 4 | 6 of 6 | 4 | 4.6% | " in text


@pytest.mark.parametrize(
    ("edge", "groups"),
    [
        ("embedding -> L0H1.q", ("tokens -> L0 query", "all -> queries")),
        ("MLP 0 -> L2H1.v", ("layers -> L2 value", "all -> values")),
        ("L0H1 -> L1 post weights", ("layers -> L1 post weights", "all -> weights", "all -> post weights")),
        ("embedding -> L1 pre weights", ("tokens -> L1 pre weights", "all -> weights", "all -> pre weights")),
        ("L1H0 -> L1H1 (post qp)", ("L1 post mixed heads", "mixed heads", "post between heads")),
        ("L1H1 -> L1H1 (post static)", ("L1 post mixed heads", "mixed heads")),
        ("L1H0 -> L1H0 (pre skip)", ()),
        ("L0H1 -> MLP 1", ("all -> MLP 1",)),
        ("L1H1 -> logits", ("L1 -> logits",)),
    ],
)
def test_the_ways_of_the_tasks_pool_edges_by_reader(edge, groups):
    assert script("recombination_tasks", "circuits").ways(edge) == groups


def test_the_relation_is_asked_of_six_of_six_models():
    module, experiment = script("recombination_tasks", "circuits"), read_experiment(FOLDER / "recombination_tasks")
    for part in module.settings(experiment)[1]:
        numbers = {f"task{number}" for number in module.tasks_of(experiment, part)}
        assert bool(numbers & HELD_OUT) == (numbers <= HELD_OUT) == part.endswith("held-out")

    def of(apart: list[float]) -> str:
        rows = [
            {"seed": seed, "part": module.ORDINALS, "change": module.RELATION, "group": group, "share": share}
            for seed, each in enumerate(apart)
            for group, share in ((module.ROUTE, 0.2 + each), (module.OTHER, 0.2))
        ]
        rows += [{"seed": seed} for seed in range(len(apart), 6)]
        return module.verdict(pd.DataFrame(rows).assign(arm="DCMHA"), experiment)

    assert "above zero in 6 of them; **supported**" in of([0.1, 0.12, 0.09, 0.11, 0.1, 0.1])
    assert "above zero in 5 of them; **open**" in of([0.1, 0.12, 0.09, 0.11, 0.1, -0.01])
    assert "above zero in 0 of them; **refuted**" in of([-0.1, -0.12, -0.09, -0.11, -0.1, -0.1])
    assert of([0.1] * 5).endswith(
        "5 of 6 models could be asked, above zero in 5 of them; fewer than 6, so nothing is concluded."
    )


def test_a_gain_is_told_from_better_learning():
    """Of two arms over six seeds; three of the four conditions fail one by one."""
    module, experiment = (
        script("recombination_tasks_mechanisms", "learnt"),
        read_experiment(FOLDER / "recombination_tasks"),
    )
    asked, found = experiment.hypotheses[0], comparison(experiment, None)

    def of(plain: list[float], apart: list[float]) -> ArmComparison:
        values = torch.tensor([plain, [0.0] * 6, [one + more for one, more in zip(plain, apart, strict=True)]])
        return dataclasses.replace(found, values=values)

    def says(left_out: list[float], seen: list[float], plain: float = 0.97, level: float = 0.98) -> list[str]:
        return module.row_of(asked, of([0.5] * 6, left_out), of([plain] * 6, seen), 0.95, level)[3:]

    near, above = [0.01, -0.01, 0.02, -0.02, 0.0, 0.01], [0.1, 0.2, 0.1, 0.2, 0.1, 0.2]
    assert says(above, near)[1:] == ["6", "+0.150", "+0.002", "yes"]
    assert says(above, [0.001, 0.0011, 0.001, 0.0012, 0.001, 0.0011])[-1] == "no", "better on tasks seen, in all seeds"
    assert says(above, [0.2, -0.0, -0.01, 0.0, 0.01, -0.01])[-1] == "no", "better on tasks seen, in the mean"
    assert says(above, [0.0] * 4 + [-0.4] * 2)[1:] == ["4", "+0.150", "+0.000", "yes"]
    assert says(above, [0.0] * 3 + [-0.4] * 3)[1:] == ["3", "+0.133", "+0.000", "too few"]
    assert says(above, near, plain=0.5)[1:] == ["0", "", "", "too few"]
    assert says([-each for each in above], near)[-1] == "no finding"
    assert says([-each for each in above], near, plain=0.5)[-1] == "too few", "whatever the difference is"
    low, high = found.between(asked.arms, asked.baselines, 0.98)[1:]
    assert module.row_of(asked, found, found, 0.95, 0.98)[2] == f"[{low:+.3f}, {high:+.3f}]"
    others = [0.01, 0.02, 0.01, 0.02, 0.9, 0.9], [0.01, 0.0, 0.01, 0.0, -0.5, -0.5]
    assert says(*others)[-1] == "no finding"
    assert says(*others, level=0.5)[-1] == "no", "of other seeds"
    text = module.summary(experiment)
    assert "H1: DCMHA minus plain | +0.067" in text
    assert f"one family of {len(experiment.hypotheses)}" in text
    found = dataclasses.replace(found, planned=9)
    assert says(above, near)[-1] == "", "seeds are missing"


def test_maps_that_no_token_makes_have_no_way_through_weights():
    """Of the 74 tasks; a share of 0.00 there would be a reading of what is not."""
    module, folder = script("recombination_tasks", "circuits"), FOLDER / "recombination_tasks_mechanisms"
    rows = pd.read_csv(folder / "circuits.csv")
    text = module.summary(rows, read_experiment(folder))
    by_arm = dict(each.split("\n", 1) for each in text.split("### ")[1:])
    assert {arm: "weights |" in table for arm, table in by_arm.items()} == {
        "DCMHA": True,
        "plain": False,
        "talking heads": False,
        "head convolution": False,
        "differential": False,
    }
    assert text.count("*all -> weights* 0.") == 1, "and in the lines of means"


def test_what_a_difference_leans_on_is_what_is_left_without_a_part_of_it(monkeypatch):
    module, folder = script("recombination_tasks_mechanisms", "leans_on"), FOLDER / "recombination_tasks_mechanisms"
    experiment, rows = read_experiment(folder), pd.read_csv(folder / "by_combination.csv")
    text = module.summary(rows, experiment)
    assert text == (folder / "more-leans-on.md").read_text(encoding="utf-8")
    one, seed = experiment.config["data"]["holdout"][0], experiment.seeds[0]
    monkeypatch.setattr(module, "RESAMPLES", 100)
    planted = rows.assign(right=0.0)  # a gain in one combination of one seed, over all arms but that of H1
    planted.loc[(rows["arm"] == "talking heads") & (rows["combination"] == one) & (rows["seed"] == seed), "right"] = 1.0
    lines = module.summary(planted, experiment).splitlines()
    first = {line.split(" | ")[0].strip("| "): line.split(" | ")[1] for line in lines if line.startswith("| ")}
    assert first[one].startswith("+0.000")
    assert all(first[each].startswith("+0.025") for each in experiment.config["data"]["holdout"][1:])
    assert first[str(seed)].startswith("+0.200; +0.000")


@pytest.mark.parametrize(
    ("source", "folder", "arms", "mean"),
    [
        ("recombination_tasks_mechanisms", "recombination_tasks", {"plain", "plain wider", "DCMHA"}, "-0.054"),
        (
            "recombination_tasks_two_heads",
            "recombination_tasks_mechanisms_two_heads",
            {"plain wider", "DCMHA"},
            "-0.006",
        ),
    ],
)
def test_runs_of_another_experiment_are_runs_of_this_one_too(tmp_path, source, folder, arms, mean):
    """By their digests, as both have the same config for them."""
    module, other = script("recombination_tasks", "same_runs"), FOLDER / source / "results.csv"
    experiment, table = read_experiment(FOLDER / folder), tmp_path / "table.csv"
    module.main(other, FOLDER / folder, table)
    rows = read_table(replace(experiment, table=table))
    final = rows[rows["stage"] == "final"]
    assert set(rows["arm"]) == arms
    assert list(final["arm"].value_counts()) == [10] * len(arms)
    by_arm = final.pivot_table(index="recipe.seed", columns="arm", values="accuracy 1 held-out")
    assert f"{(by_arm['DCMHA'] - by_arm['plain wider']).mean():+.3f}" == mean, "as on the other page"
    with pytest.raises(UserError, match="is there already"):
        module.main(other, FOLDER / folder, table)
    with pytest.raises(UserError, match=r"There is no .*none\.csv yet"):
        module.main(tmp_path / "none.csv", FOLDER / folder, tmp_path / "new.csv")

    theirs = replace(read_experiment(FOLDER / source), table=table)
    whole = pd.read_csv(other, dtype={"digest": str})

    def refused(rows: pd.DataFrame, message: str) -> None:
        rows.to_csv(table, index=False)
        with pytest.raises(UserError, match=message):
            module.shared_rows(theirs, experiment)

    refused(whole[:-1], r"lacks 'final,DCMHA.*all runs must have ended")
    refused(whole.assign(status=[*whole["status"][:-1], "failed"]), "lacks 'final,DCMHA")
    refused(whole[whole["recipe.seed"] != theirs.seeds[0]], "lacks seeds: it has 9 of 10")
    refused(whole.assign(digest=[*whole["digest"][:-1], None]), "without a digest")
    refused(pd.concat([whole, whole[-1:]]), "has two rows of the run")
    refused(whole.assign(digest=[*whole["digest"][:-1], "0000"]), "made with another config")


@pytest.mark.parametrize("name", ["learnt", "leans_on"])
def test_what_is_said_of_other_seeds_stands_beside_their_table(tmp_path, name):
    folder = FOLDER / "recombination_tasks_mechanisms"
    module, table = script("recombination_tasks_mechanisms", name), tmp_path / "again.csv"
    table.write_bytes((folder / "results.csv").read_bytes())
    if name == "leans_on":
        with pytest.raises(UserError, match=r"by_combination\.py --folder .* --table .*again\.csv makes it"):
            module.main(table)
        (tmp_path / "again").mkdir()
        (tmp_path / "again" / "by_combination.csv").write_bytes((folder / "by_combination.csv").read_bytes())
    module.main(table)
    command = f"{name}.py --table again.csv"
    text = (tmp_path / "again" / module.TEXT_FILE).read_text(encoding="utf-8")
    assert command in text
    text = text.replace(module.ASKED, module.LOOKED) if name == "leans_on" else text
    assert text.replace(f" --table {table.name}", "") == (folder / module.TEXT_FILE).read_text(encoding="utf-8")
