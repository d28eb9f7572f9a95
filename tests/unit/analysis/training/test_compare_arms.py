"""Arms of an experiment are compared seed by seed, and their intervals are those of paired differences."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import dcinterp
from dcinterp.evidence.page import page_of, search_tables, table_of
from dcinterp.evidence.verdicts import verdict_lines
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.support.errors import UserError
from dcinterp.train.control.experiment import digest, read_table
from dcinterp.train.control.experiment_file import read_experiment


def test_a_difference_is_that_of_the_means_and_its_interval_that_of_the_pairs(tmp_path, write_experiment):
    random = np.random.default_rng(0)
    documents = random.normal(0, 0.2, 8)  # what the two runs of a seed share
    plain = 0.5 + documents + random.normal(0, 0.01, 8)
    composed = 0.6 + documents + random.normal(0, 0.01, 8)
    folder = write_experiment(tmp_path / "e", {"plain": plain.tolist(), "composed": composed.tolist()})
    found = dcinterp.compare_arms(str(folder))
    assert found.arms == ("plain", "composed")
    assert found.mean.tolist() == pytest.approx([plain.mean(), composed.mean()])
    assert float(found.difference[1]) == pytest.approx(composed.mean() - plain.mean())
    low, high = bootstrap_interval(torch.tensor(composed - plain))
    assert (float(found.difference_low[1]), float(found.difference_high[1])) == pytest.approx((float(low), float(high)))
    apart = bootstrap_interval(torch.tensor(plain))
    assert float(high - low) < 0.1 < float(apart[1] - apart[0]), "pairs leave out what the documents do"
    assert bool(found.low.isnan().all()), "accuracies that are learnt or not have no interval of their mean"
    assert "includes 0" not in found.sentences()[0]


def test_an_interval_around_zero_is_no_difference(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.9, 0.5], "composed": [0.9, 0.1, 0.6]})
    found = dcinterp.compare_arms(str(folder))
    assert "includes 0" in found.sentences()[0]
    assert any("3 seeds" in warning for warning in found.warnings())


def test_only_seeds_with_a_run_of_every_arm_count_and_verdicts_wait_for_all(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2, float("nan")], "composed": [0.3, 0.41, 0.9]})
    found = dcinterp.compare_arms(str(folder))
    assert found.seeds == (0, 1)
    assert float(found.difference[1]) == pytest.approx(float(found.mean[1] - found.mean[0]))
    assert any("2 of 3 seeds" in warning for warning in found.warnings())
    experiment = read_experiment(folder)
    assert "interim, 2 of 3 seeds: no verdict" in verdict_lines(experiment)[0]


def test_only_seeds_that_the_file_names_count_in_its_own_table(tmp_path, write_experiment):
    runs = {"plain": [0.1, 0.2, 0.15], "composed": [0.3, 0.41, 0.36]}
    folder = write_experiment(tmp_path / "e", runs)
    file = folder / "experiment.yaml"
    tree = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(tree | {"seeds": [0, 1, 10]}, sort_keys=False))
    found = dcinterp.compare_arms(str(folder))
    assert (found.seeds, found.planned) == ((0, 1), 3)
    again = tmp_path / "again.csv"
    (folder / "results.csv").rename(again)
    found = dcinterp.compare_arms(str(folder), table=str(again))
    assert (found.seeds, found.planned) == ((0, 1, 2), 3), "the seeds of a repetition are its own"
    file.write_text(yaml.safe_dump(tree | {"seeds": list(range(20, 30))}, sort_keys=False))
    found = dcinterp.compare_arms(str(folder), table=str(again))
    assert any("3 of 10 seeds" in warning for warning in found.warnings())
    assert "interim, 3 of 10 seeds" in verdict_lines(read_experiment(folder, table=again))[0]


def test_runs_of_another_config_are_not_compared(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2], "composed": [0.3, 0.41]})
    experiment = read_experiment(folder)
    table = read_table(experiment)
    runs = {run.name: run for run in experiment.tuning_runs() + experiment.final_runs(table)}
    table["digest"] = [digest(runs[name]) for name in table["name"]]
    table.to_csv(folder / "results.csv", index=False)
    assert dcinterp.compare_arms(str(folder)).seeds == (0, 1)
    file = folder / "experiment.yaml"
    text = file.read_text()
    file.write_text(text.replace("steps: 2", "steps: 500"))
    with pytest.raises(UserError, match="was made with another config"):
        dcinterp.compare_arms(str(folder))
    searched = yaml.safe_load(text)
    searched["tuning"]["config"] = {"data.puzzle.options.first": 2}  # of the runs that chose, and of no reported one
    file.write_text(yaml.safe_dump(searched, sort_keys=False))
    with pytest.raises(UserError, match=r"has a run 'tuning,plain,.*' that was made with another config"):
        dcinterp.compare_arms(str(folder))


def test_a_run_with_two_rows_is_no_mean_of_them(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2], "composed": [0.3, 0.41]})
    table = pd.read_csv(folder / "results.csv")
    again = table.iloc[:1].assign(**{"accuracy 1 held-out": 0.9})
    for edited in (table, table.assign(digest="x")):
        pd.concat([edited, again]).to_csv(folder / "results.csv", index=False)
        with pytest.raises(UserError, match=r"has two rows of the run 'final,plain,learning_rate=0\.001,seed=0'"):
            dcinterp.compare_arms(str(folder))


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("arm", "composed", "has 'composed' as arm in the row of 'final,plain,.*whose name says 'plain'; put"),
        ("arm", " plain", "has ' plain' as arm"),
        ("stage", "tuning", "has 'tuning' as stage"),
        ("recipe.seed", 1, "has 1 as recipe.seed .* says 0"),
        ("recipe.learning_rate", 0.002, "has 0.002 as recipe.learning_rate .* says 0.001"),
        ("recipe.learning_rate", None, "has nan as recipe.learning_rate"),
    ],
)
def test_a_row_is_what_its_name_says(tmp_path, write_experiment, column, value, says):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2], "composed": [0.3, 0.41]})
    table = pd.read_csv(folder / "results.csv")
    table.loc[0, column] = value
    table.to_csv(folder / "results.csv", index=False)
    with pytest.raises(UserError, match=says):
        dcinterp.compare_arms(str(folder))


def test_a_row_of_an_arm_that_the_file_no_longer_has_is_left_alone(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2], "composed": [0.3, 0.41]})
    table = pd.read_csv(folder / "results.csv")
    former = table.iloc[:1].assign(name="final,former,learning_rate=0.001,seed=0", arm="former")
    for value in (0.5, "n/k"):
        pd.concat([table, former.assign(**{"accuracy 1 held-out": value})]).to_csv(folder / "results.csv", index=False)
        found = dcinterp.compare_arms(str(folder))
        assert found.arms == ("plain", "composed")
        assert found.mean.tolist() == pytest.approx([0.15, 0.355])


def test_a_page_names_the_folder_as_it_was_given(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "my e", {"plain": [0.1, 0.2], "composed": [0.3, 0.41]})
    shutil.copy(folder / "results.csv", folder / "replication.csv")
    table = pd.read_csv(folder / "replication.csv")
    final = table["stage"] == "final"
    table["recipe.seed"] += 10 * final
    table["name"] = [
        name.replace("seed=", "seed=1") if own else name for name, own in zip(table["name"], final, strict=True)
    ]
    table.to_csv(folder / "replication.csv", index=False)
    page = page_of(read_experiment(folder), "picture.svg")
    assert f"dcinterp experiment run '{folder}'\n" in page
    assert f"dcinterp experiment show '{folder}' --arm" in page
    assert f"--table '{folder}'/replication.csv" in page
    assert "experiments/" not in page


def test_what_is_the_same_in_all_seeds_has_no_verdict(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.25, 0.5, 0.125], "more": [0.375, 0.625, 0.25]})
    assert (
        "; the same in all seeds, so that there is no interval: no verdict" in verdict_lines(read_experiment(folder))[0]
    )
    runs = {"plain": [0.1] * 5, "a": [0.1] * 5, "b": [0.1] * 5, "c": [0.1] * 5}
    folder = write_experiment(tmp_path / "rounding", runs)
    tree = yaml.safe_load((folder / "experiment.yaml").read_text())
    tree["hypotheses"] = [{"name": "H1", "arm": ["a", "b", "c"], "baseline": "plain"}]
    (folder / "experiment.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    assert verdict_lines(read_experiment(folder))[0].endswith("**open**.")


def test_a_table_without_sizes_or_with_a_measure_missing_is_shown_as_far_as_it_goes(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2, 0.15], "composed": [0.3, 0.41, 0.36]})
    table = pd.read_csv(folder / "results.csv").drop(columns=["parameters", "flops"])
    table["accuracy 1 seen"] = table["accuracy 1 seen"].fillna(0.99)
    table.loc[table["name"] == "final,plain,learning_rate=0.001,seed=0", "accuracy 1 seen"] = float("nan")
    table.to_csv(folder / "results.csv", index=False)
    tree = yaml.safe_load((folder / "experiment.yaml").read_text())
    solved = {"solved": {"by": "accuracy 1 seen", "at": 0.95}}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(tree | solved, sort_keys=False))
    page = page_of(read_experiment(folder), "picture.svg")
    assert "| plain | not known | not known |" in page
    assert "| plain | 2 | 0.175 |" in page, "of the seeds that have both measures"


def test_of_one_seed_nothing_is_said_in_the_plural(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, float("nan")], "composed": [0.3, 0.4]})
    assert "There is one seed, so there are no intervals." in dcinterp.compare_arms(str(folder)).warnings()
    experiment = read_experiment(folder)
    assert verdict_lines(experiment)[0].endswith("over 1 seed; interim, 1 of 2 seeds: no verdict.")
    assert "\n\nSeed 0. A difference is taken" in page_of(experiment, "picture.svg")


def test_a_verdict_is_supported_open_or_refuted_by_the_interval(tmp_path, write_experiment):
    runs = {"plain": [0.3, 0.4, 0.5, 0.35], "same": [0.4, 0.3, 0.45, 0.4], "more": [0.6, 0.7, 0.81, 0.66]}
    for number, (arm, says) in enumerate((("same", "**open**"), ("more", "**supported**"))):
        folder = write_experiment(tmp_path / f"e{number}", {"plain": runs["plain"], arm: runs[arm]})
        experiment = read_experiment(folder)
        assert says in verdict_lines(experiment)[0]
        assert "4 of 4" not in page_of(experiment, "picture.svg")
    folder = write_experiment(tmp_path / "back", {"more": runs["more"], "plain": runs["plain"]})
    experiment = read_experiment(folder)
    assert "**refuted**" in verdict_lines(experiment)[0]


def test_hypotheses_of_a_page_are_corrected_for_each_other_too(tmp_path, write_experiment):
    plain = torch.tensor([0.30, 0.34, 0.28, 0.33])
    clear, close = plain + torch.tensor([0.40, 0.39, 0.41, 0.40]), plain + torch.tensor([0.12, 0.04, 0.10, 0.18])
    for level, above in ((0.95, True), (0.975, False)):
        low, _ = bootstrap_interval(close - plain, bounds=(-1.0, 1.0), level=level)
        assert bool(low > 0) == above
    runs = {"plain": plain.tolist(), "clear": clear.tolist(), "close": close.tolist()}
    (first, second, last) = verdict_lines(read_experiment(write_experiment(tmp_path / "e", runs)))
    assert "**supported**" in first
    assert "**supported**" in second
    assert last == (
        "Corrected for being 2 tests (Bonferroni: intervals of 97.5%), H1 would come out as above; H2 would be open."
    )
    one = read_experiment(write_experiment(tmp_path / "one", {"plain": plain.tolist(), "clear": clear.tolist()}))
    assert len(verdict_lines(one)) == 1, "one test is no family"


def test_a_page_says_what_sets_the_runs_of_the_search_apart(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2], "composed": [0.3, 0.1]})
    file = folder / "experiment.yaml"
    tree = yaml.safe_load(file.read_text())
    tree["tuning"]["config"] = {"data.puzzle.options.first": 4}
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    says = "Runs of the search differ from those reported in `data.puzzle.options.first` = 4, besides their seeds"
    means = "other pairs are left out there, and those reported as never seen are trained"
    assert f"- {says}: {means}.\n" in page_of(read_experiment(folder), "picture.svg")


@pytest.mark.parametrize(
    ("better", "same", "says"),
    [
        (0.4, 0.0, "**made**."),
        (0.0, 0.0, "**not made** (H1 is open)."),
        (-0.2, 0.0, "**not made** (H1 is refuted)."),
        (0.4, 0.05, "**not made** (the interval of H2 ends at +0."),
        (0.4, -0.2, "**not made** (H2 is refuted, so H1 may only say what was learnt)."),
        (0.4, None, "**not made** (H2 has no interval)."),
    ],
)
def test_a_claim_is_made_where_nothing_stands_against_it(tmp_path, write_experiment, better, same, says):
    plain, scatter = torch.tensor([0.30, 0.34, 0.28, 0.33]), torch.tensor([0.01, -0.01, 0.005, -0.005])
    seen = plain + 0.02 if same is None else plain + same + 0.1 * scatter
    runs = {"plain": plain, "other": plain + better + scatter, "seen": seen}
    folder = write_experiment(tmp_path / "e", {arm: values.tolist() for arm, values in runs.items()})
    file = folder / "experiment.yaml"
    tree = yaml.safe_load(file.read_text()) | {"claim": {"says": "it helps", "needs": ["H1"], "same": {"H2": 0.03}}}
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    claim = next(line for line in verdict_lines(read_experiment(folder)) if line.startswith("**The claim**"))
    assert claim.startswith(
        "**The claim** that it helps needs that H1 is supported, and that H2 is not refuted, with an interval"
    )
    assert says in claim
    tree["seeds"] = [*tree["seeds"], 9]
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    assert verdict_lines(read_experiment(folder))[-1].endswith("no verdict before all 5 seeds are there.")


@pytest.mark.parametrize("best", ["highest", "lowest", None])
@pytest.mark.parametrize("edge", ["plain", "more", "other"])
@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("rule", ["open", "marked"])
def test_a_verdict_against_an_arm_at_an_edge_of_the_search_is_open_or_marked(
    tmp_path, write_experiment, monkeypatch, best, edge, above, rule
):
    less, more = [0.3, 0.4, 0.5, 0.35], [0.6, 0.7, 0.81, 0.66]
    runs = {"plain": less, "more": more} if above else {"plain": more, "more": less}
    folder = write_experiment(tmp_path / "e", runs)
    file = folder / "experiment.yaml"
    tree = yaml.safe_load(file.read_text()) | {"claim": {"says": "it helps", "needs": ["H1"]}}
    tree["tuning"] |= {"at_an_edge": rule} | ({} if best is None else {"measure_best": best})
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    monkeypatch.setattr("dcinterp.train.control.experiment.Experiment.chosen_at_an_edge", lambda *_: [edge])
    verdict, *_, claim = verdict_lines(read_experiment(folder))
    worse = ("plain" if above else "more") if best == "highest" else ("more" if above else "plain")
    better = f"*{edge}* may do better with a value beyond those searched."
    assert verdict.endswith(better) == (best is not None and edge == worse)
    if best is not None and edge == worse and rule == "open":
        assert verdict.endswith(f"; **open**, as {better}")
        assert claim.endswith("**not made** (H1 is open).")
    else:
        assert ("**supported**" if above else "**refuted**") in verdict
        assert claim.endswith("**made**." if above else "**not made** (H1 is refuted).")


def test_an_end_near_zero_tells_its_side(tmp_path, write_experiment):
    plain = [0.1, 0.2, 0.3]
    near = [value + more for value, more in zip(plain, (2.7e-4, 3e-4, 3.3e-4), strict=True)]
    same = [value + 1e-4 for value in plain]
    folder = write_experiment(tmp_path / "e", {"plain": plain, "composed": near, "same": same})
    found = dcinterp.compare_arms(str(folder))
    assert "+0.0003 [+0.0002, +0.0004]" in table_of(found, 0.95)
    assert "+0.0001 (all the same, so no interval)" in table_of(found, 0.95)
    assert found.sentences()[1] == "same minus plain: +0.000, the same in all 3 seeds, so that there is no interval."


def test_a_hypothesis_on_several_arms_is_about_their_mean_in_each_seed(tmp_path, write_experiment):
    runs = {
        "plain-2": [0.1, 0.5, 0.3],
        "plain-4": [0.5, 0.1, 0.35],
        "all-2": [0.4, 0.6, 0.5],
        "all-4": [0.6, 0.35, 0.4],
    }
    folder = write_experiment(tmp_path / "e", runs)
    file = folder / "experiment.yaml"
    tree = yaml.safe_load(file.read_text())
    tree["hypotheses"] = [{"name": "H1", "arm": ["all-2", "all-4"], "baseline": ["plain-2", "plain-4"]}]
    file.write_text(yaml.safe_dump(tree))
    experiment = read_experiment(folder)
    apart = torch.tensor([0.2, 0.175, 0.125], dtype=torch.float64)
    low, high = bootstrap_interval(apart, bounds=(-1.0, 1.0))
    (about,) = experiment.hypotheses
    found = dcinterp.compare_arms(str(folder)).between(about.arms, about.baselines)
    assert found == pytest.approx((float(apart.mean()), float(low), float(high)))
    said = verdict_lines(experiment)[0]
    assert "the mean of all-2 and all-4 minus that of plain-2 and plain-4" in said
    seeds = "over 3 seeds (one by one +0.200, +0.175, +0.125)"
    assert f"{found[0]:+.3f} [{found[1]:+.3f}, {found[2]:+.3f}] {seeds}; **open**" in said


def test_a_page_shows_what_the_search_saw_at_every_value(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2], "composed": [0.3, 0.4]})
    table = pd.read_csv(folder / "results.csv")
    searched = table["stage"] == "tuning"
    table.loc[searched, "accuracy 1 seen"] = [0.5, 0.25, 0.625, 0.75]
    table.to_csv(folder / "results.csv", index=False)
    found = search_tables(read_experiment(folder))
    assert "| arm | learning_rate 0.001 | learning_rate 0.002 |" in found
    assert "| plain | **0.500** | 0.250 |" in found
    assert "| composed | 0.625 | **0.750** |" in found
    assert "on new pairs" not in found, "no run of the search has it"
    table.loc[searched, "accuracy 1 held-out"] = [0.1, 0.2, 0.3, 0.4]
    table.to_csv(folder / "results.csv", index=False)
    assert "| composed | 0.300 | **0.400** |" in search_tables(read_experiment(folder))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"measure": "accuracy 1 held"}, "accuracy 1 held-out"),
        ({"baseline": "plan"}, "plain"),
        (
            {"table": "nowhere.csv"},
            r"There is no table nowhere\.csv; `dcinterp experiment run .* --seeds \.\.\. .* makes it",
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path, write_experiment, arguments, says):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2], "composed": [0.3, 0.4]})
    with pytest.raises(UserError, match=says):
        dcinterp.compare_arms(str(folder), **arguments)


@pytest.mark.parametrize(("values", "near"), [([0.93, 0.95, 0.97], 0.92), ([0.3, 0.95, 0.97], -0.02)])
def test_points_that_lie_close_together_have_the_width_of_the_figure(tmp_path, write_experiment, values, near):
    folder = write_experiment(tmp_path / "e", {"plain": values, "composed": [0.99, 0.98, 1.0]})
    left, right = dcinterp.figures.plot(dcinterp.compare_arms(str(folder))).layout.xaxis.range
    assert left == pytest.approx(near, abs=0.004)
    assert right > 1
