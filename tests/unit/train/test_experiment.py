"""An experiment tunes every arm on seeds of its own, reports the others, and runs nothing twice."""

from __future__ import annotations

import dataclasses
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from typer.testing import CliRunner

import dcinterp
from dcinterp.cli import verbs
from dcinterp.evidence.page import page_of
from dcinterp.support.errors import UserError
from dcinterp.support.source_commit import source_commit
from dcinterp.train.config.recipe import read_config
from dcinterp.train.control import experiment as experiment_module
from dcinterp.train.control import run_experiment as runner
from dcinterp.train.control import sweep
from dcinterp.train.control.check_experiment import plan_experiment
from dcinterp.train.control.experiment import NoRunsYet, joined, read_table, values_text
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.control.run_experiment import run_experiment
from dcinterp.train.control.run_lock import lock_run
from dcinterp.train.control.seeds import parse_seeds, seeds_text
from dcinterp.train.loop.run import train
from dcinterp.train.loop.trainer import processes

TREE = {
    "config": {
        "model": {
            "preset": "tiny-transformer++",
            "changes": {
                "num_hidden_layers": 1,
                "hidden_size": 8,
                "num_attention_heads": 2,
                "intermediate_size": 0,
            },
        },
        "data": {
            "puzzle": {"name": "recombination", "options": {"questions": 1}},
            "phases": [{"source": "puzzle", "steps": 2, "batch_size": 2, "score": "answer"}],
        },
        "recipe": {"threads": 1},
        "log_every": 1,
        "evaluation": {"every": 2, "validation_rows": 4, "watch": False},
    },
    "arms": [{"name": "plain"}, {"name": "talking heads", "model.changes.compose": "static"}],
    "tuning": {"keys": {"recipe.learning_rate": [0.001, 0.1]}, "seeds": [100], "by": "loss", "best": "lowest"},
    "seeds": [0],
    "measures": {"accuracy 1 held-out": "accuracy on new pairs"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "experiments" / "small"
    made.mkdir(parents=True)
    (made / "experiment.yaml").write_text(yaml.safe_dump(TREE | {"output": str(tmp_path / "runs")}))
    return made


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that were started, in this process instead of one of their own."""
    names: list[str] = []

    def launch(config, log, folder, stop, working):
        names.append(Path(config).stem)
        train(read_config(config), resume=True)
        return ""

    monkeypatch.setattr(sweep, "train_there", launch)
    return names


def test_every_arm_is_tuned_alike_and_nothing_runs_twice(folder, launched):
    experiment = read_experiment(folder)
    table = run_experiment(experiment)
    tuning, final = (table[table["stage"] == stage] for stage in ("tuning", "final"))
    assert len(launched) == len(table) == 6
    assert [(row.arm, row["recipe.seed"]) for _, row in final.iterrows()] == [("plain", 0), ("talking heads", 0)]
    for arm in experiment.arms:
        searched = tuning[tuning["arm"] == arm]
        assert sorted(searched["recipe.learning_rate"]) == [0.001, 0.1]
        best = searched.loc[searched["loss"].idxmin(), "recipe.learning_rate"]
        assert final[final["arm"] == arm]["recipe.learning_rate"].tolist() == [best]
    assert final["accuracy 1 held-out"].between(0, 1).all()
    assert set(table["torch"]) == {torch.__version__}
    assert set(table["device"]) == {str(processes().device)}
    assert set(table["commit"].fillna("")) == {source_commit()}
    assert "data_digest" not in table, "of documents that are made there is none"
    found = dcinterp.compare_arms(str(folder))
    assert found.arms == ("plain", "talking heads")
    launched.clear()
    run_experiment(experiment)
    assert not launched, "the rows of the table are enough"
    with pytest.raises(UserError, match="give --table"):
        run_experiment(experiment, seeds=(7,))
    other = yaml.safe_load((folder / "experiment.yaml").read_text())
    other["config"]["data"]["phases"][0]["steps"] = 3
    (folder / "experiment.yaml").write_text(yaml.safe_dump(other))
    with pytest.raises(UserError, match="another config"):
        run_experiment(read_experiment(folder))


def test_a_repetition_keeps_the_search_when_told_to(folder, launched):
    """The page then says what became of the hypotheses with the other seeds, beside the verdicts and not in them."""
    own = run_experiment(read_experiment(folder))
    launched.clear()
    again = read_experiment(folder, table=folder / "replication.csv")
    table = run_experiment(again, seeds=(7, 8), keep_search=True)
    assert sorted(name.split(",")[-1] for name in launched) == ["seed=7", "seed=7", "seed=8", "seed=8"]
    searched = [rows[rows["stage"] == "tuning"].reset_index(drop=True) for rows in (own, table)]
    assert searched[0]["name"].tolist() == searched[1]["name"].tolist()
    assert searched[0]["loss"].tolist() == pytest.approx(searched[1]["loss"].tolist())
    launched.clear()
    run_experiment(again, seeds=(7, 8), keep_search=True)
    assert not launched
    with pytest.raises(UserError, match="--keep-search fills another table"):
        run_experiment(read_experiment(folder), keep_search=True)
    with pytest.raises(UserError, match=r"is for other seeds than the file's, which are in results.csv; .* without 0"):
        run_experiment(again, seeds=(0, 9), keep_search=True)
    with pytest.raises(UserError, match=r"is for other seeds; give --seeds, such as those that it has, 7-8\.$"):
        run_experiment(again, keep_search=True)
    page = page_of(read_experiment(folder), "picture.svg")
    assert f"--seeds 7-8 --keep-search --table {folder}/replication.csv" in page
    assert page.count("## With other seeds") == 1
    (folder / "replication.csv").unlink()
    assert "With other seeds" not in page_of(read_experiment(folder), "picture.svg")


def test_seeds_that_are_planned_are_those_of_a_repetition(folder, launched, monkeypatch):
    (folder / "experiment.yaml").write_text(
        yaml.safe_dump(TREE | {"again": {"seeds": "7-8"}, "output": str(folder.parents[1] / "runs")})
    )
    own = run_experiment(read_experiment(folder))
    planned = "Planned is a repetition with seeds 7-8"
    text = page_of(read_experiment(folder), "picture.svg")
    command = f"dcinterp experiment run {folder} --seeds 7-8 --keep-search --table {folder}/replication.csv"
    assert f"{planned}, by\n\n    {command}" in text
    (folder / "protocol.md").write_text("# Protocol\n")
    text = page_of(read_experiment(folder), "picture.svg")
    assert f"{planned}, by the commands of `{folder}/protocol.md`." in text
    again = read_experiment(folder, table=folder / "replication.csv")
    with pytest.raises(UserError, match=r"plans the seeds 7-8 for .*replication.csv, without 9; give those"):
        run_experiment(again, seeds=(8, 9), keep_search=True)
    launched.clear()
    run_experiment(again, keep_search=True)
    assert sorted(name.split(",")[-1] for name in launched) == ["seed=7", "seed=7", "seed=8", "seed=8"]
    table = pd.read_csv(folder / "replication.csv")
    assert planned not in page_of(read_experiment(folder), "picture.svg"), "it is done"
    table.iloc[:-1].to_csv(folder / "replication.csv", index=False)
    assert f"{planned} (3 of its 4 runs have ended), by" in page_of(read_experiment(folder), "picture.svg")
    table["status"] = [*table["status"][:-1], "diverged"]
    table.to_csv(folder / "replication.csv", index=False)
    assert planned not in page_of(read_experiment(folder), "picture.svg"), "no run of it is to come"
    monkeypatch.chdir(folder.parent)
    with pytest.raises(UserError, match=rf"has the name of the table that the page shows.* --table {folder}/repl"):
        run_experiment(read_experiment(folder, table="replication.csv"), keep_search=True)
    other = folder.parent / "other.csv"
    own.assign(name=[name.replace("learning_rate", "clip") for name in own["name"]]).to_csv(other, index=False)
    with pytest.raises(UserError, match=r"No row of .*other.csv is a run of .*small: it is the table of another"):
        run_experiment(read_experiment(folder, table=other))


def test_a_page_says_of_a_protocol_what_it_holds(folder, launched):
    run_experiment(read_experiment(folder))
    assert "protocol.md" not in page_of(read_experiment(folder), "picture.svg")
    (folder / "protocol.md").write_text("# Protocol\n")
    assert "and how. This page" in page_of(read_experiment(folder), "picture.svg")
    (folder / "protocol.md").write_text("# Protocol\n\n## Changes\n\nNone.\n")
    assert "what was known then. This page" in page_of(read_experiment(folder), "picture.svg")


def test_a_tie_of_the_search_goes_to_the_lower_training_loss(folder):
    (folder / "experiment.yaml").write_text(
        yaml.safe_dump(TREE | {"tuning": TREE["tuning"] | {"by": "accuracy 1 seen", "best": "highest"}})
    )
    experiment = read_experiment(folder)
    rows = [
        {"name": run.name, "status": "done", "accuracy 1 seen": 1.0, "loss": abs(run.config.recipe.learning_rate - 0.1)}
        for run in experiment.tuning_runs()
    ]
    chosen = experiment.choose(pd.DataFrame(rows))
    assert chosen == {arm: {"recipe.learning_rate": 0.1} for arm in experiment.arms}
    assert experiment.chosen_at_an_edge(pd.DataFrame(rows)) == list(experiment.arms)


def test_a_search_may_hold_out_other_pairs_than_are_reported(folder):
    tuning = TREE["tuning"] | {"config": {"data.puzzle.options.first": 2}}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(TREE | {"tuning": tuning}))
    experiment = read_experiment(folder)
    assert {run.config.data.puzzle.options.get("first") for run in experiment.tuning_runs()} == {2}
    assert "first" not in experiment.run("final", "plain", {}, 0).config.data.puzzle.options
    (folder / "experiment.yaml").write_text(
        yaml.safe_dump(TREE | {"tuning": TREE["tuning"] | {"config": {"data.puzle": 2}}})
    )
    with pytest.raises(UserError, match="puzle"):
        read_experiment(folder)


def test_a_run_from_before_a_key_of_configs_is_known_while_the_key_does_what_it_did(folder, monkeypatch):
    experiment = read_experiment(folder)
    (run, *_) = experiment.tuning_runs()
    before = experiment_module.digests(run)[-1]
    monkeypatch.setattr(experiment_module, "ADDED", ({"recipe.clip": run.config.recipe.clip}, *experiment_module.ADDED))
    assert before in experiment_module.digests(run)
    assert len(experiment_module.digests(run)) == len(experiment_module.ADDED) + 1
    changed = dataclasses.replace(run, config=dataclasses.replace(run.config, log_every=7))
    assert not set(experiment_module.digests(run)) & set(experiment_module.digests(changed))
    monkeypatch.setattr(experiment_module, "ADDED", ({"recipe.seed": 12345},))
    assert experiment_module.digests(run) == [experiment_module.digest(run)]


def test_an_arm_may_take_what_the_search_chose_for_another(folder):
    wide = {"name": "wide", "tuned_as": "talking heads", "model.changes.hidden_size": 16}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(TREE | {"arms": [*TREE["arms"], wide]}))
    experiment = read_experiment(folder)
    assert {run.name.split(",")[1] for run in experiment.tuning_runs()} == {"plain", "talking-heads"}
    rows = [
        {"name": run.name, "status": "done", "loss": -rate if "plain" in run.name else rate}
        for run in experiment.tuning_runs()
        for rate in [run.config.recipe.learning_rate]
    ]
    chosen = experiment.choose(pd.DataFrame(rows))
    assert [chosen[arm]["recipe.learning_rate"] for arm in ("plain", "talking heads", "wide")] == [0.1, 0.001, 0.001]
    final = experiment.final_runs(pd.DataFrame(rows))[-1].config
    assert (final.model.changes["hidden_size"], final.recipe.learning_rate) == (16, 0.001)


def test_a_table_of_its_own_starts_from_nothing(folder, tmp_path):
    rows = [{"name": "tuning,plain,learning_rate=0.001,seed=100", "status": "done", "loss": 1.0}]
    pd.DataFrame(rows).to_csv(folder / "results.csv", index=False)
    again = read_experiment(folder, table=tmp_path / "again.csv")
    assert again.output != read_experiment(folder).output
    with pytest.raises(UserError, match="4 runs of the search are missing"):
        again.choose(pd.DataFrame())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seeds": [100]}, "tunes on seeds that it also reports"),
        ({"seeds": "all"}, "must be a list of whole numbers"),
        ({"seeds": [-1, 0]}, "must be a list of whole numbers from 0 on"),
        ({"again": {"seeds": "0-3"}}, "plans the seed 0, which the file reports or searches with"),
        ({"again": {"seeds": "99-101"}}, "plans the seed 100, which the file reports or searches with"),
        ({"arms": [{"model.preset": "tiny-vit"}]}, "The arms of"),
        ({"multiplier": {"base": "transformer++"}}, "needs name, base and other"),
        ({"arms": [{"name": "a"}, {"name": "b", "tuned_as": "c"}]}, "must name an arm that is searched"),
        ({"arms": [{"name": "a,b"}]}, "comma"),
        (
            {"arms": [{"name": "slow", "recipe.learning_rate": 1e-5}]},
            "'slow' of .* has recipe.learning_rate, but the search sets",
        ),
        ({"arms": [{"name": "late", "data.seed": 7}]}, "'late' of .* has data.seed, but each seed sets"),
        (
            {"arms": [{"name": "slow", "recipe": {"learning_rate": 0.5}}]},
            "has recipe.learning_rate, but the search sets recipe.learning",
        ),
        ({"tuning": TREE["tuning"] | {"config": {"recipe.seed": 5}}}, "has recipe.seed, but the search sets"),
        ({"tuning": {"seeds": [100]}}, "has seeds and no keys to search"),
        ({"arms": [{"name": "a b"}, {"name": "a/b"}]}, "no other's"),
        ({"tuning": {"keys": {"recipe.learning_rate": [1.0]}}}, "no seeds"),
        ({"tuning": {"best": "higest"}}, "lowest or highest"),
        ({"tuning": {"measure_best": "most"}}, "`measure_best` of .* is 'most'; it is lowest or highest"),
        ({"tuning": {"measure_bets": "lowest"}}, "measure_best"),
        ({"tuning": {"at_an_edge": "marks"}}, "`at_an_edge` of .* is 'marks'; it is open or marked"),
        ({"tuning": {"keys": {"recipe.learning_rate": 0.001}, "seeds": [100]}}, "must hold lists of values"),
        ({"tuning": {"keys": {"recipe.learning_rate": []}, "seeds": [100]}}, "must hold lists of values"),
        ({"tuning": {"config": "base.yaml"}}, "`config` under `tuning` of .* must hold keys and values"),
        ({"config": "base.yaml"}, "`config` of .* must hold keys and values"),
        ({"solved": 0.95}, "`solved` of .* must be a column and a share"),
        ({"solved": {"by": "accuracy 1 seen", "at": "most"}}, "`solved` of .* must be a column and a share"),
        ({"solved": {"by": "accuracy 1 seen", "at": 95}}, "`solved` of .* must be a column and a share"),
        ({"output": 5}, "`output` of .* must be a folder"),
        (
            {"hypotheses": [{"name": "H1", "arm": "plain", "baseline": ["plain", "talking heads"]}]},
            "'H1' of .* has 'plain' on both sides",
        ),
        (
            {"hypotheses": [{"name": "H1", "arm": "talking heads", "baseline": "plain"}] * 2},
            "Two hypotheses of .* are called 'H1'",
        ),
        (
            {"hypotheses": [{"name": "H1", "arm": "talking heads", "baseline": "plain", "measure": "acuracy"}]},
            "is about 'acuracy'",
        ),
        ({"about": "one sentence"}, "`about` of .* must be a list"),
        ({"limits": 5}, "`limits` of .* must be a list"),
        ({"seeds": [0, 0, 1]}, "one twice"),
        ({"tuning": TREE["tuning"] | {"keys": {"recipe.learning_rate": [0.001, "1e-3"]}}}, "has 0.001 of .* twice"),
        ({"hypotheses": [{"name": "H1", "arm": [], "baseline": "plain"}]}, "needs an arm and a baseline"),
        ({"claim": {"says": "it helps", "needs": []}}, "must be a list such as"),
        (
            {
                "hypotheses": [{"name": "H1", "arm": "talking heads", "baseline": "plain"}],
                "claim": {"says": "it helps", "needs": ["H1"], "same": {"H1": "low"}},
            },
            "`same` such as",
        ),
        ({"measure": {}}, "measures"),
        ({"hypotheses": [{"name": "H1", "arm": "plane", "baseline": "plain"}]}, "plain"),
        (
            {"hypotheses": [{"name": "H1", "arm": "talking heads", "baseline": "plain", "again": 99}]},
            "must be a level such as 0.99",
        ),
        ({"claim": {"says": "it helps"}}, "needs `says` and `needs`"),
        ({"claim": {"says": "it helps", "needs": "H1"}}, "must be a list such as"),
        ({"claim": {"says": "it helps", "needs": ["H7"]}}, "names the hypothesis 'H7'"),
        ({"arms": [{"name": "plain", "recipe.learning_rat": 8}]}, "learning_rate"),
        ({"arms": [{"name": "a", "model": {"changes": {"compose": "static"}}}]}, "also has 'preset'.*model.changes: "),
        ({"arms": [{"name": "a", "model.changes": {"compose": "static"}}]}, "as in `model.changes.compose"),
        ({"arms": [{"name": "a", "model.changes.compose": "statik"}]}, "The arm 'a' of .*static"),
        ({"arms": [{"name": "a", "model.changes.hidden_sizes": 8}]}, "The arm 'a' of .*hidden_size"),
        ({"arms": [{"name": "a", "model.changes.num_attention_heads": 3}]}, "The arm 'a' of .*3"),
        ({"arms": [{"name": "a", "data.puzzle.name": "recombinatoin"}]}, "The arm 'a' of .*recombination"),
        ({"arms": [{"name": "a", "data.puzzle.options.questoins": 1}]}, "The arm 'a' of .*questions"),
        ({"tuning": TREE["tuning"] | {"by": "accuracy 1 seen", "best": None}}, "lowest or highest"),
        ({"tuning": {"keys": {"recipe.learning_rate": [1.0]}, "seeds": [100], "by": "accuracy 1 seen"}}, "best: high"),
        (
            {"tuning": {"keys": {f"recipe.k{n}": [*range(10)] for n in range(8)}, "seeds": [100]}},
            "comes to 200,000,000 runs",
        ),
    ],
)
def test_what_is_wrong_with_the_file_is_named(folder, change, says):
    (folder / "experiment.yaml").write_text(yaml.safe_dump(TREE | change))
    with pytest.raises((UserError, ValueError), match=says):
        read_experiment(folder)


def test_an_experiment_takes_the_config_of_another_but_for_what_it_says(folder):
    beside = folder.parent / "wider"
    beside.mkdir()
    own = {"model": {"changes": {"hidden_size": 16}}, "data": {"phases": TREE["config"]["data"]["phases"] * 2}}
    tree = TREE | {"config_of": "small", "config": own}
    (beside / "experiment.yaml").write_text(yaml.safe_dump(tree))
    first, other = (read_experiment(each).run("final", "plain", {}, 0).config for each in (folder, beside))
    assert other.model.changes == first.model.changes | {"hidden_size": 16}
    assert len(other.data.phases) == 2
    assert other.recipe == first.recipe
    (beside / "experiment.yaml").write_text(yaml.safe_dump(tree | {"config_of": "smal"}))
    with pytest.raises(UserError, match="names 'smal'; did you mean small"):
        read_experiment(beside)
    (beside / "experiment.yaml").write_text(yaml.safe_dump(tree))
    (folder / "experiment.yaml").write_text(yaml.safe_dump(tree | {"config_of": "wider"}))
    with pytest.raises(UserError, match="takes its own from wider; name that one"):
        read_experiment(beside)


@pytest.mark.parametrize(("seeds", "text"), [((3, 4, 5), "3-5"), ((7, 3, 5, 4), "3-5,7"), ((9,), "9")])
def test_seeds_are_told_as_they_are_read(seeds, text):
    assert seeds_text(seeds) == text
    assert set(parse_seeds(text)) == set(seeds)


def test_seeds_are_written_as_ranges_or_lists():
    assert parse_seeds("10-12,3") == (10, 11, 12, 3)
    assert parse_seeds("") == ()
    for text in ("all", "19-10", "10-", "-3", ",", "1-2-3"):
        with pytest.raises(UserError, match="names no seeds"):
            parse_seeds(text)


def test_an_experiment_is_the_same_from_inside_its_folder(folder, monkeypatch):
    (folder / "experiment.yaml").write_text(yaml.safe_dump(TREE))
    beside = folder.parent / "wider"
    beside.mkdir()
    tree = {key: value for key, value in TREE.items() if key != "config"} | {"config_of": "small"}
    (beside / "experiment.yaml").write_text(yaml.safe_dump(tree))
    (beside / "results.csv").write_text("stage,recipe.seed\nfinal,1\n")
    wanted = read_experiment(folder)
    below = folder / "below"
    below.mkdir()
    for place, name in ((folder, "."), (folder, "experiment.yaml"), (below, "..")):
        monkeypatch.chdir(place)
        found = read_experiment(name)
        assert (found.title, found.output, found.fresh_seeds()) == ("small", Path("runs/small"), "2-2")
        assert found.fresh_seeds() == wanted.fresh_seeds()
    monkeypatch.chdir(beside)
    assert read_experiment(".").config == wanted.config
    linked = folder.parent / "linked"
    linked.mkdir()
    (linked / "experiment.yaml").symlink_to(folder / "experiment.yaml")
    monkeypatch.chdir(linked)
    assert read_experiment(".").table == linked / "results.csv"
    assert read_experiment(".").output == Path("runs/linked")


def test_whole_numbers_of_a_table_stay_whole(folder):
    table = joined(pd.DataFrame(columns=["name", "recipe.seed"]), pd.DataFrame({"name": ["a"], "recipe.seed": [7]}))
    assert table["recipe.seed"].tolist() == [7]
    assert table["recipe.seed"].dtype.kind == "i"
    rows = 'stage,arm,name,status,recipe.seed\nfinal,plain,"final,plain,learning_rate=0.1,seed=660",done,660.0\n'
    (folder / "results.csv").write_text(rows)
    assert read_table(read_experiment(folder))["recipe.seed"].dtype.kind == "i", "tables of 0.1 may have 660.0"


def test_values_of_a_search_are_numbers_where_a_person_means_them(folder):
    tuning = TREE["tuning"] | {"keys": {"recipe.learning_rate": ["5e-4", "1e-3", "2e-3"]}}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(TREE | {"tuning": tuning}))
    experiment = read_experiment(folder)
    for best, edge in ((0.001, []), (0.002, list(experiment.arms)), (0.0005, list(experiment.arms))):
        rows = [
            {"name": run.name, "status": "done", "loss": abs(run.config.recipe.learning_rate - best)}
            for run in experiment.tuning_runs()
        ]
        assert experiment.chosen_at_an_edge(pd.DataFrame(rows)) == edge
    tuning = TREE["tuning"] | {"keys": {"model.changes.compose": ["static", "dynamic"]}}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(TREE | {"arms": [{"name": "a"}], "tuning": tuning}))
    words = read_experiment(folder)
    rows = [{"name": run.name, "status": "done", "loss": 1.0} for run in words.tuning_runs()]
    assert words.chosen_at_an_edge(pd.DataFrame(rows)) == [], "words have no ends"
    assert values_text({"model.changes.compose": "static", "recipe.learning_rate": 0.0020}) == (
        "compose static, learning_rate 0.002"
    )


def test_a_run_does_not_change_the_values_of_others(folder):
    tuning = TREE["tuning"] | {"config": {"model.changes.hidden_size": 16}}
    arms = [{"name": "plain", "model.changes": TREE["config"]["model"]["changes"]}]
    (folder / "experiment.yaml").write_text(yaml.safe_dump(TREE | {"arms": arms, "tuning": tuning}))
    experiment = read_experiment(folder)
    sizes = [experiment.run(stage, "plain", {}, 0).config.model.changes["hidden_size"] for stage in ("tuning", "final")]
    assert sizes == [16, 8]


def test_names_and_digests_of_a_table_are_text(folder):
    run = '"final,plain,learning_rate=0.1,seed=3"'  # besides one of former arms
    lines = ["stage,arm,name,status,digest,loss", "final,1,a,done,381082e177193957,0.5", "final,None,b,done,7e5,"]
    lines += [f"final,plain,{run},done,1,"]
    (folder / "results.csv").write_text("\n".join(lines))
    table = read_table(read_experiment(folder))
    assert table["arm"].tolist() == ["1", "None", "plain"]
    assert table["digest"].tolist() == ["381082e177193957", "7e5", "1"]
    assert table["loss"].isna().tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("text", "says"), [("", "is not a valid table"), ("name,status\na,done\n", "has no column 'stage'")]
)
def test_what_is_no_table_of_runs_is_refused(folder, text, says):
    (folder / "results.csv").write_text(text)
    with pytest.raises(UserError, match=says):
        read_table(read_experiment(folder))


@pytest.mark.parametrize("value", ["high", "0,5", "=1+1", "5", "-0.1", "inf"])
def test_what_no_run_measures_is_named(folder, value):
    (folder / "experiment.yaml").write_text(yaml.safe_dump({k: v for k, v in TREE.items() if k != "tuning"}))
    runs = [read_experiment(folder).run("final", arm, {}, 0) for arm in ("plain", "talking heads")]
    rows = [
        {
            "stage": "final",
            "arm": arm,
            "name": run.name,
            "status": "done",
            "recipe.seed": 0,
            "data.seed": 0,
            "digest": experiment_module.digest(run),
            "accuracy 1 held-out": each,
        }
        for arm, run, each in zip(("plain", "talking heads"), runs, ("0.5", value), strict=True)
    ]
    pd.DataFrame(rows).to_csv(folder / "results.csv", index=False)
    with pytest.raises(UserError, match=r"held-out' of the run .*talking-heads.* must be a share from 0 to 1"):
        dcinterp.compare_arms(str(folder))


def test_a_pipe_beside_an_experiment_keeps_nobody_waiting(folder):
    other = folder.parent / "other"
    other.mkdir()
    os.mkfifo(other / "results.csv")
    assert read_experiment(folder).fresh_seeds() == "1-1"


def test_a_value_at_which_runs_diverge_is_the_worst(folder, monkeypatch):
    started = []

    def launch(config, log, folder, stop, working):
        started.append(Path(config).stem)
        if "learning_rate=0.1" in config:
            return "The loss became NaN or infinite at step 2, so training has stopped and no model is written."
        train(read_config(config), resume=True)
        return ""

    monkeypatch.setattr(sweep, "train_there", launch)
    experiment = read_experiment(folder)
    table = run_experiment(experiment)
    assert table.groupby("stage")["status"].apply(list).to_dict() == {
        "tuning": ["done", "diverged", "done", "diverged"],
        "final": ["done", "done"],
    }
    assert set(map(str, experiment.choose(table).values())) == {"{'recipe.learning_rate': 0.001}"}
    number = len(started)
    run_experiment(experiment)
    assert len(started) == number, "nothing runs twice"
    assert "| **" in (page := page_of(experiment, "small.svg"))
    assert "| diverged |" in page
    assert plan_experiment(experiment).search == (4, 4)
    table.loc[table["stage"] == "tuning", "status"] = "diverged"
    with pytest.raises(UserError, match="Of plain, runs diverged at every value of the search; give lower"):
        experiment.choose(table)


def test_a_reported_run_that_diverges_is_named_once_and_not_made_again(folder, monkeypatch):
    started = []

    def launch(config, log, folder, stop, working):
        started.append(Path(config).stem)
        if "final,plain" in config:
            return "The loss became NaN or infinite at step 2, so training has stopped and no model is written."
        train(read_config(config), resume=True)
        return ""

    monkeypatch.setattr(sweep, "train_there", launch)
    experiment = read_experiment(folder)
    with pytest.raises(UserError, match=r"1 of 2 runs failed, such as final,plain.* became NaN or infinite"):
        run_experiment(experiment)
    table, number = read_table(experiment), len(started)
    assert dict(zip(table["arm"], table["status"], strict=True))["plain"] == "diverged"
    assert run_experiment(experiment).equals(table)
    assert len(started) == number, "it is not made again"
    with pytest.raises(NoRunsYet, match=r"No seed of .* has a run of every arm"):
        dcinterp.compare_arms(str(folder))


def test_a_repetition_has_the_seeds_and_draws_that_the_file_names(folder):
    file = folder / "experiment.yaml"
    file.write_text(file.read_text() + "again: {seeds: 20-29, draws: 5000}\n")
    own, again = read_experiment(folder), read_experiment(folder, table=folder / "replication.csv")
    assert (own.planned([0]), own.draws) == (len(own.seeds), 1000)
    assert (again.planned([20]), again.draws) == (10, 5000)
    assert again.planned([20, 40]) == 11, "one that was not planned takes no other's place"
    elsewhere = read_experiment(folder, table=folder / "again.csv")
    assert (elsewhere.planned([40, 41]), elsewhere.draws) == (2, 1000)
    beside = folder.parent / "beside"
    beside.mkdir()
    for text in ("again: {seeds: 30-31}\n", 'again:\n  draws: 1000\n  seeds: "30-31"\n'):
        (beside / "experiment.yaml").write_text(text)
        assert own.fresh_seeds() == "32-32"
    for wrong in ("again: 5", "again: {seed: 3}", "again: {draws: many}"):
        file.write_text("\n".join([*file.read_text().splitlines()[:-1], wrong]) + "\n")
        with pytest.raises(UserError, match=r"`again` of .* must be seeds and draws"):
            read_experiment(folder)


def test_runs_of_another_table_are_found_where_the_folder_was_moved_to(folder, tmp_path):
    inside = read_experiment(folder, table=folder / "replication.csv").output
    moved = shutil.copytree(folder, tmp_path / "moved" / folder.name)
    assert read_experiment(moved, table=moved / "replication.csv").output == inside
    assert read_experiment(folder, table=tmp_path / "replication.csv").output != inside


def test_a_search_over_seeds_is_refused(folder):
    file = folder / "experiment.yaml"
    tree = yaml.safe_load(file.read_text())
    tree["tuning"]["keys"] = {"data.seed": [1, 2]}
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(UserError, match=r"has data\.seed, but each seed sets data\.seed; leave it out"):
        read_experiment(folder)


def test_runs_that_fail_are_named_and_the_others_kept(folder, monkeypatch):
    def launch(config, log, folder, stop, working):
        if "final,plain" in config:
            return "The loss is not finite at step 2."
        train(read_config(config), resume=True)
        return ""

    monkeypatch.setattr(sweep, "train_there", launch)
    experiment = read_experiment(folder)
    with pytest.raises(
        UserError, match=r"1 of 2 runs failed, such as final,plain.* \(The loss is not finite at step 2"
    ):
        run_experiment(experiment)
    kept = read_table(experiment)
    assert kept.loc[kept["stage"] == "final", "arm"].tolist() == ["talking heads"]
    done = CliRunner().invoke(verbs, ["experiment", "run", str(folder)])
    assert done.exit_code == 1
    assert "FAILED 1 of 1 runs failed, such as final,plain" in done.stderr


def test_one_process_at_a_time_runs_an_experiment(folder):
    experiment = read_experiment(folder)
    experiment.output.mkdir(parents=True)
    with (
        lock_run(experiment.output, file=runner.LOCK),
        pytest.raises(UserError, match=f"Process {os.getpid()} is training in .*, or give another --table"),
    ):
        run_experiment(experiment)


def test_one_process_at_a_time_writes_a_table_wherever_its_runs_are(folder):
    experiment = replace(read_experiment(folder), output=folder / "elsewhere")
    with (
        lock_run(experiment.table.parent, file=f".{experiment.table.name}.lock"),
        pytest.raises(UserError, match=r"is training in .*, or give another --table"),
    ):
        run_experiment(experiment)
    named = read_experiment(folder, table=experiment.table)
    assert named.output == read_experiment(folder).output, "its own table has its own runs, by whatever path"


def test_rows_that_another_process_wrote_are_left_alone(folder, launched):
    experiment = read_experiment(folder)
    place = experiment.output / "tuning"
    place.mkdir(parents=True)
    pd.DataFrame([{"name": "tuning,other,seed=9", "status": "done", "message": ""}]).to_csv(place / "results.csv")
    run = experiment.tuning_runs()[0]
    runner._join(experiment, "tuning", [run])
    assert not experiment.table.exists()


def test_its_own_table_is_known_by_any_path(folder):
    again = read_experiment(folder, table=(folder / "results.csv").absolute())
    with pytest.raises(UserError, match="give --table"):
        run_experiment(again, seeds=(7,))
