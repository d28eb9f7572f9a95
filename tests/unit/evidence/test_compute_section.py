"""The part of an experiment's page on compute says what planted lines are, and why there is no multiplier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

import dcinterp
from dcinterp.evidence.compute_section import _residuals, compute_section
from dcinterp.evidence.multiplier import fit_of, multiplier_brackets
from dcinterp.evidence.page import page_of
from dcinterp.evidence.verdicts import verdict_lines
from dcinterp.support.errors import UserError
from dcinterp.train.control.experiment import FINAL, Experiment
from dcinterp.train.control.experiment_file import read_experiment, series

SIZES = {8: 1e12, 16: 4e12, 24: 1e13}
FAMILIES = {"plain": "transformer++", "all": "dcformer++"}


@pytest.fixture
def planted(tmp_path: Path) -> Callable[..., Experiment]:
    """An experiment of three sizes and two families, whose runs lie on lines with a multiplier for each seed."""

    def make(multipliers: list[float], level: float = 1.0, planned: int = 3) -> Experiment:
        arms = [
            {"name": f"{arm} {size}", "model.preset": f"tiny-{family}", "model.changes.hidden_size": size}
            for size in SIZES
            for arm, family in FAMILIES.items()
        ]
        config = {
            "model": {"changes": {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 0}},
            "data": {"text": {"context": 8}, "phases": [{"source": "text", "steps": 1, "batch_size": 1}]},
        }
        tree = {
            "config": config,
            "arms": arms,
            "seeds": list(range(planned)),
            "measures": {"bits_per_byte": "held-out bits a byte"},
            "multiplier": {"name": "H1", "base": "transformer++", "other": "dcformer++"},
        }
        (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(tree))
        experiment = read_experiment(tmp_path)
        rows = []
        for seed, multiplier in enumerate(multipliers):
            for arm in experiment.arms:
                name, size = arm.split()
                factor = level * multiplier**-0.05 if name == "all" else 1.0
                facts = {"stage": FINAL, "arm": arm, "status": "done", "recipe.seed": seed}
                flops = SIZES[int(size)]
                facts |= {"family": FAMILIES[name], "flops": flops, "parameters": flops**0.5, "loss": 1.0}
                facts["name"] = experiment.run(FINAL, arm, {}, seed).name
                rows.append(facts | {"bits_per_byte": factor * (flops / 1e15) ** -0.05})
        pd.DataFrame(rows).to_csv(experiment.table, index=False)
        return experiment

    return make


@pytest.mark.parametrize(
    ("multipliers", "says"),
    [
        ([1.5, 1.6, 1.7], "by lines 1.60 [1.37, 1.87], by pieces 1.60 [1.37, 1.87] over 3 seeds (one by one "),
        ([1.5, 1.6, 1.7], "over 3 seeds (one by one 1.50, 1.60, 1.70 and 1.50, 1.60, 1.70); **supported**."),
        ([0.7, 0.8, 1.5], "over 3 seeds (one by one 0.70, 0.80, 1.50 and 0.70, 0.80, 1.50); **open**."),
        (
            [0.6, 0.62, 0.61],
            "over 3 seeds (one by one 0.60, 0.62, 0.61 and 0.60, 0.62, 0.61); **refuted**: it is below 1.",
        ),
    ],
)
def test_a_planted_multiplier_is_judged_by_its_interval(planted, multipliers, says):
    experiment = planted(multipliers)
    (line,) = verdict_lines(experiment)
    assert line.startswith("**H1** (the compute multiplier is above 1, at ")
    assert says in line
    assert f"- {line}" in page_of(experiment, "small.svg")


@pytest.mark.parametrize("best", ["lowest", ""])
@pytest.mark.parametrize("edge", ["plain 16", "all 16"])
@pytest.mark.parametrize("multipliers", [[1.5, 1.6, 1.7], [0.6, 0.62, 0.61]])
def test_no_verdict_goes_against_a_family_at_an_edge_of_the_search(planted, monkeypatch, multipliers, edge, best):
    experiment = replace(planted(multipliers), measure_best=best)
    monkeypatch.setattr(Experiment, "chosen_at_an_edge", lambda *_: [edge])
    (line,) = verdict_lines(experiment)
    costlier = "plain 16" if multipliers[0] > 1 else "all 16"
    if best and edge == costlier:
        assert line.endswith(f"; **open**, as *{edge}* may do better with a value beyond those searched.")
    else:
        assert ("**supported**" if multipliers[0] > 1 else "**refuted**") in line


@pytest.fixture
def parted(planted, tmp_path) -> Callable[..., Experiment]:
    """The same runs in two experiments: that of the largest size has a table of its own, and the other names it."""

    def make(multipliers: list[float]) -> Experiment:
        whole = planted(multipliers)
        table, tree = pd.read_csv(whole.table), yaml.safe_load((whole.folder / "experiment.yaml").read_text())
        for name, large in (("small", False), ("large", True)):
            folder = tmp_path / name
            folder.mkdir()
            arms = [arm for arm in tree["arms"] if arm["name"].endswith(" 24") == large]
            multiplier = None if large else tree["multiplier"] | {"beside": ["large"]}
            (folder / "experiment.yaml").write_text(yaml.safe_dump(tree | {"arms": arms, "multiplier": multiplier}))
            table[table["arm"].str.endswith(" 24") == large].to_csv(folder / "results.csv", index=False)
        return read_experiment(tmp_path / "small")

    return make


@pytest.mark.parametrize("multipliers", [[1.5, 1.6, 1.7], [0.7, 0.8, 1.5], [0.6, 0.62, 0.61]])
def test_sizes_of_two_experiments_are_one_series(planted, parted, multipliers):
    assert verdict_lines(parted(multipliers)) == verdict_lines(planted(multipliers))


def test_a_repetition_is_of_tables_of_one_name(planted, parted):
    """With the seeds of a repetition in both folders; before the other has its own the line says what is missing."""
    experiment = parted([1.5, 1.6, 1.7])
    tables = [experiment.folder.parent / name for name in ("small", "large")]
    for folder in tables:
        (folder / "results.csv").rename(folder / "again.csv")
    (tables[1] / "again.csv").rename(tables[1] / "away.csv")
    again = read_experiment(tables[0], table=tables[0] / "again.csv")
    assert f"There is no {tables[1] / 'again.csv'}; the multiplier needs" in verdict_lines(again)[0]
    (tables[1] / "away.csv").rename(tables[1] / "again.csv")
    assert verdict_lines(again) == verdict_lines(planted([1.5, 1.6, 1.7]))


def test_arms_can_be_left_out_of_a_series(planted, parted):
    """A second run of a size, far off, in the table of the other experiment."""
    experiment = parted([1.5, 1.6, 1.7])
    large = experiment.folder.parent / "large"
    table, tree = pd.read_csv(large / "results.csv"), yaml.safe_load((large / "experiment.yaml").read_text())
    again = table[table["arm"] == "all 24"].assign(arm="odd 24", bits_per_byte=9.0)
    again["name"] = [name.replace("all-24", "odd-24") for name in again["name"]]
    pd.concat([table, again]).to_csv(large / "results.csv", index=False)
    odd = next(arm for arm in tree["arms"] if arm["name"] == "all 24") | {"name": "odd 24"}
    (large / "experiment.yaml").write_text(yaml.safe_dump(tree | {"arms": [*tree["arms"], odd]}))
    assert verdict_lines(experiment) != verdict_lines(planted([1.5, 1.6, 1.7]))
    assert experiment.multiplier is not None
    left_out = replace(experiment, multiplier=replace(experiment.multiplier, without=("odd 24",)))
    assert verdict_lines(left_out) == verdict_lines(planted([1.5, 1.6, 1.7]))
    text = page_of(left_out, "small.svg")
    assert '--loss bits_per_byte --without "odd 24" --over seeds' in text
    assert "*odd 24*" not in text
    with pytest.raises(UserError, match="No finished run is of the arm 'odd 2'"):
        dcinterp.scaling_fit(str(large / "results.csv"), loss="bits_per_byte", without=["odd 2"])


def test_the_page_of_two_experiments_names_all_sizes_and_both_tables(parted):
    experiment = parted([1.5, 1.6, 1.7])
    text, beside = page_of(experiment, "small.svg"), experiment.folder.parent
    assert "transformer++ is *plain 8*, *plain 16*, *plain 24*; dcformer++ is *all 8*, *all 16*, *all 24*" in text
    tables = f"{beside}/small/results.csv {beside}/large/results.csv"
    assert f"dcinterp scaling {tables} --loss bits_per_byte" in text, "no folder of dcinterp's own"


@pytest.mark.parametrize("edge", ["plain 24", "all 24"])
def test_an_arm_of_the_other_experiment_at_an_edge_counts(parted, monkeypatch, edge):
    experiment = replace(parted([1.5, 1.6, 1.7]), measure_best="lowest")
    monkeypatch.setattr(Experiment, "chosen_at_an_edge", lambda self, _: [edge] if self.folder.name == "large" else [])
    (line,) = verdict_lines(experiment)
    assert ("**open**, as *plain 24* may" in line) == (edge == "plain 24")


def test_a_size_missing_in_the_other_experiment_is_no_silent_gap(parted):
    experiment = parted([1.5, 1.6, 1.7])
    file = experiment.folder.parent / "large" / "results.csv"
    table = pd.read_csv(file)
    table[table["arm"] != "all 24"].to_csv(file, index=False)
    assert "No run of all 24 has ended" in verdict_lines(experiment)[0]
    other = table.iloc[:1].assign(name="final,plain-24,seed=9", **{"recipe.seed": 9})
    pd.concat([table, other]).to_csv(file, index=False)
    assert "has 1 runs of other seeds" in verdict_lines(experiment)[0]


def test_a_table_without_the_loss_is_named(parted):
    experiment = parted([1.5, 1.6, 1.7])
    table = experiment.folder.parent / "large" / "results.csv"
    pd.read_csv(table).drop(columns=["bits_per_byte"]).to_csv(table, index=False)
    with pytest.raises(UserError, match=r"large.*has no column 'bits_per_byte'"):
        fit_of(experiment)


def test_arms_of_one_name_in_a_series_are_refused(parted):
    experiment = parted([1.5, 1.6, 1.7])
    file = experiment.folder.parent / "large" / "experiment.yaml"
    file.write_text(file.read_text().replace("all 24", "all 16"))
    with pytest.raises(UserError, match=r"have two arms 'all 16'; rename one"):
        series(experiment)


def test_residuals_of_families_of_other_sizes_have_a_column_each():
    law = {"plain": [1e12, 4e12, 1e13], "all": [1e12, 4e12, 1e13, 3e13]}
    points = [(family, flops, flops**-0.05) for family, sizes in law.items() for flops in sizes]
    head, _, *rows = _residuals(dcinterp.scaling_fit(points, base="plain", other="all")).splitlines()
    assert head.count("|") == 6
    assert [row.count("|") for row in rows] == [6, 6]


def test_points_have_no_arms_to_leave_out():
    with pytest.raises(UserError, match="Only runs of an experiment have arms"):
        dcinterp.scaling_fit([("transformer++", 1e9, 1.0)], without=["plain"])


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        (["small"], "names itself, or one twice"),
        (["large", "large"], "names itself, or one twice"),
        (["nowhere"], "names 'nowhere'; there is no .*experiment.yaml"),
        ("large", "must be a list"),
    ],
)
def test_a_series_with_an_experiment_that_is_not_there_is_refused(parted, beside, says):
    file = parted([1.5, 1.6, 1.7]).folder / "experiment.yaml"
    tree = yaml.safe_load(file.read_text())
    tree["multiplier"]["beside"] = beside
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(UserError, match=says):
        read_experiment(file.parent)


def test_what_composing_costs_and_what_it_saves_in_parameters_stand_beside_the_multiplier(planted):
    """It costs a quarter more FLOPs here; parameters are the root of FLOPs, and so are the savings in them."""
    experiment = planted([4.0, 4.0, 4.0])
    table = pd.read_csv(experiment.table)
    table.loc[table["family"] == "dcformer++", "flops"] *= 1.25
    table.to_csv(experiment.table, index=False)
    text = compute_section(experiment, "small.svg")
    assert "the multiplier would be 0.80 (seed by seed 0.80, 0.80, 0.80). No test" in " ".join(text.split())
    assert "needs 2.00 (seed by seed 2.00, 2.00, 2.00) times those of dcformer++" in text


def test_tables_with_losses_of_two_kinds_are_refused(tmp_path):
    for name, column in (("a", "loss"), ("b", "validation_loss")):
        rows = [{"family": family, "flops": flops, column: 1.0} for family in FAMILIES.values() for flops in (1e9, 3e9)]
        pd.DataFrame(rows).to_csv(tmp_path / f"{name}.csv", index=False)
    with pytest.raises(UserError, match=r"different kinds \(loss, validation_loss\); name one with --loss"):
        dcinterp.scaling_fit([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")])


def test_the_page_has_the_lines_and_their_figure(planted):
    text = page_of(planted([1.5, 1.6, 1.7]), "small.svg")
    assert "(small-compute.svg)" in text
    assert text.count("| 1.60 [1.37, 1.87] | 1.60 [1.37, 1.87] |") == 9
    assert "| dcformer++ | +0.00% | +0.00% | +0.00% |" in text.replace("-0.00%", "+0.00%")
    assert "transformer++ falls as compute to the power of -0.0500 [-0.0500, -0.0500]" in text
    assert "transformer++ is *plain 8*, *plain 16*, *plain 24*; dcformer++ is *all 8*, *all 16*, *all 24*" in text
    assert "over 3 seeds (one by one 1.50, 1.60, 1.70 and 1.50, 1.60, 1.70)" in text


def test_without_all_seeds_there_is_no_verdict(planted):
    assert verdict_lines(planted([1.5, 1.6], planned=3))[0].endswith(
        "2 of 3 seeds have a run of every arm: no verdict."
    )


def test_a_seed_that_lacks_an_arm_counts_as_planned_in_a_repetition_of_more_seeds(planted):
    experiment = planted([1.5, 1.6, 1.7, 0.9])
    table = pd.read_csv(experiment.table)
    table = table[(table["recipe.seed"] != 3) | (table["arm"] != "all 24")]
    again = experiment.table.with_name("replication.csv")
    table.to_csv(again, index=False)
    assert verdict_lines(read_experiment(experiment.folder, table=again))[0].endswith(
        "3 of 4 seeds have a run of every arm: no verdict."
    )


@pytest.mark.parametrize(("multipliers", "stays"), [([1.5, 1.6, 1.7], True), ([1.12, 1.2, 1.28], False)])
def test_a_multiplier_is_corrected_as_the_tests_beside_it_are(planted, multipliers, stays):
    experiment = planted(multipliers)
    file = experiment.folder / "experiment.yaml"
    beside = {"hypotheses": [{"name": "H2", "arm": "all 24", "baseline": "plain 24"}]}
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | beside))
    first, _, last = verdict_lines(read_experiment(experiment.folder))
    assert "**supported**" in first
    assert last.startswith("Corrected for being 2 tests (Bonferroni: intervals of 97.5%), ")
    assert ("H1 would come out as above" in last) == stays
    assert ("H1 would be open" in last or "H1 and H2 would be open" in last) != stays


def test_a_size_that_no_seed_has_is_no_silent_gap(planted):
    experiment = planted([1.5, 1.6, 1.7])
    table = pd.read_csv(experiment.table)
    table[table["arm"] != "all 16"].to_csv(experiment.table, index=False)
    assert "No run of all 16 has ended" in verdict_lines(experiment)[0]


def test_lines_and_pieces_must_agree(planted):
    experiment = planted([1.5, 1.6, 1.7])
    table = pd.read_csv(experiment.table)
    table.loc[table["arm"] == "all 24", "bits_per_byte"] *= 1.04  # above the line, and no better than plain
    table.to_csv(experiment.table, index=False)
    (line,) = verdict_lines(experiment)
    assert "**open**" in line


def test_families_without_a_loss_in_common_have_no_multiplier(planted):
    experiment = planted([1.0, 1.0, 1.0], level=0.5)
    assert "reached no loss in common" in verdict_lines(experiment)[0]
    assert compute_section(experiment, "small-compute.svg") == ""
    assert "small-compute.svg" not in page_of(experiment, "small.svg")


def test_the_families_of_a_size_are_held_against_each_other(planted: Callable[..., Experiment]) -> None:
    """At equal text, smallest first; and not at all where one family has a size that the other lacks."""
    experiment = planted([0.7, 0.72, 0.71])
    lines = compute_section(experiment, "picture.svg").splitlines()
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("| plain ") and " minus " in line]
    assert rows == ["plain 8 minus all 8", "plain 16 minus all 16", "plain 24 minus all 24"]
    more = {"name": "plain 32", "model.preset": "tiny-transformer++", "model.changes.hidden_size": 32}
    file = experiment.folder / "experiment.yaml"
    tree = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(tree | {"arms": [*tree["arms"], more]}))
    experiment, runs = read_experiment(experiment.folder), pd.read_csv(experiment.table)
    extra = runs[runs["arm"] == "plain 24"].assign(arm="plain 32", flops=2e13)
    extra["name"] = [experiment.run(FINAL, "plain 32", {}, int(seed)).name for seed in extra["recipe.seed"]]
    pd.concat([runs, extra]).to_csv(experiment.table, index=False)
    assert "At equal text" not in compute_section(experiment, "picture.svg")


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.7, 0.98, "[0.70, 0.98]"),
        (0.8, 0.9991, "[0.80, 0.999]"),
        (0.9996, 1.2, "[0.9996, 1.20]"),
        (1.0, 1.0, "[1.00, 1.00]"),
    ],
)
def test_an_end_beside_one_tells_its_side(low, high, said):
    assert multiplier_brackets(low, high) == said
