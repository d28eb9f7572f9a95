"""The table of all hypotheses says of each what its page says, and counts them."""

from __future__ import annotations

import re

import pandas as pd
import pytest
import torch
import yaml

from dcinterp.evidence.page import more_of, page_of
from dcinterp.evidence.verdicts import AT_AN_EDGE, not_repeated, verdict_lines, verdict_rows, verdict_table, verdicts
from dcinterp.support.errors import UserError
from dcinterp.train.control.experiment_file import read_experiment

PLAIN = torch.tensor([0.30, 0.34, 0.28, 0.33])
SCATTER = torch.tensor([0.01, -0.01, 0.005, -0.005])


def changed(folder, **keys):
    """An experiment with other keys in its file."""
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | keys, sort_keys=False))
    return read_experiment(folder)


def repeated(folder, change):
    """Its runs once more, as of other seeds, in the table of a repetition; `change` is added to those of "better"."""
    read = pd.read_csv(folder / "results.csv")
    final = read["stage"] == "final"
    read.loc[final, "recipe.seed"] += 10
    read.loc[final, "name"] = [
        f"final,{arm},learning_rate=0.001,seed={seed}"
        for arm, seed in read.loc[final, ["arm", "recipe.seed"]].to_numpy()
    ]
    better = final & (read["arm"] == "better")
    read.loc[better, "accuracy 1 held-out"] += change
    read.to_csv(folder / "replication.csv", index=False)


@pytest.fixture
def several(tmp_path, write_experiment):
    """One that is better, one that is worse, and one as good, over four seeds."""
    runs = {"plain": PLAIN, "better": PLAIN + 0.3 + SCATTER, "worse": PLAIN - 0.2 + SCATTER, "same": PLAIN + SCATTER}
    return write_experiment(tmp_path / "several", {arm: values.tolist() for arm, values in runs.items()})


def test_the_table_has_every_verdict_and_their_number(several):
    claim = {"says": "it helps, here,", "needs": ["H1", "H3"]}
    text = verdict_table(verdict_rows([changed(several, claim=claim)]), "pages")
    assert "| [several](pages/several.md) | H1 | better minus plain: accuracy on new pairs | +0.300 [+0." in text
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line][2:]
    assert [row[0] for row in rows[1:]] == [""] * 3
    assert [(row[1], row[4]) for row in rows] == [
        ("H1", "supported"),
        ("H2", "refuted"),
        ("H3", "open"),
        ("claim", "not made"),
    ]
    assert rows[-1][2] == "it helps, here (needs H1 and H3)"
    assert text.endswith("Of 3 hypotheses: 1 supported, 1 refuted, 1 open.")


def test_a_claim_that_nothing_stands_against_is_made_and_waits_for_all_seeds(several):
    claim = {"says": "it helps", "needs": ["H1"]}
    assert verdict_table(verdict_rows([changed(several, claim=claim)])).splitlines()[-3].endswith("| made |  |")
    waiting = verdict_table(verdict_rows([changed(several, claim=claim, seeds=[0, 1, 2, 3, 9])]))
    assert waiting.splitlines()[-3].endswith("| no verdict |  |")
    assert waiting.endswith("Of 3 hypotheses: 3 no verdict.")


def test_what_a_correction_would_leave_open_is_marked_as_on_the_page(tmp_path, write_experiment):
    near = PLAIN + 0.016 + 0.9 * SCATTER
    runs = {"plain": PLAIN, "near": near, "far": PLAIN + 0.3 + SCATTER, "same": PLAIN + SCATTER}
    experiment = read_experiment(
        write_experiment(tmp_path / "e", {arm: values.tolist() for arm, values in runs.items()})
    )
    assert "H1 would be open" in verdict_lines(experiment)[-1]
    marked = [line for line in verdict_table(verdict_rows([experiment])).splitlines() if "(open if corrected)" in line]
    assert ["near minus plain" in line for line in marked] == [True]


def test_what_a_claim_names_is_a_family_of_its_own_where_it_is_not_made(several):
    needs = {"says": "it helps", "needs": ["H1", "H2"]}
    *_, last = verdict_lines(changed(several, claim=needs))
    assert last == (
        "Corrected for being 2 tests of a claim that is not made (Bonferroni: intervals of 97.5%), H1 and H2 would "
        "come out as above."
    )
    made = verdict_lines(changed(several, claim={"says": "it helps", "needs": ["H1"]}))
    assert made[-1].startswith("Corrected for being 2 tests (Bonferroni"), "H2 and H3; a claim asks for all of its own"
    assert "H1" not in made[-1]


def test_a_hypothesis_that_waits_for_seeds_takes_no_correction_from_the_others(several):
    table, tree = pd.read_csv(several / "results.csv"), yaml.safe_load((several / "experiment.yaml").read_text())
    table["accuracy late"] = table["accuracy 1 held-out"].where(table["recipe.seed"] != 3)
    table.to_csv(several / "results.csv", index=False)
    waits = {"name": "H4", "arm": "better", "baseline": "plain", "measure": "accuracy late"}
    keys = {"measures": tree["measures"] | {"accuracy late": "late"}, "hypotheses": [*tree["hypotheses"], waits]}
    *_, fourth, last = verdict_lines(changed(several, **keys))
    assert fourth.endswith("over 3 seeds (one by one +0.310, +0.290, +0.305); interim, 3 of 4 seeds: no verdict.")
    assert last == ("Corrected for being 4 tests (Bonferroni: intervals of 98.8%), H1 and H2 would come out as above.")


def test_what_has_no_run_is_left_out(several, tmp_path, write_experiment):
    empty = write_experiment(tmp_path / "empty", {"plain": [0.1], "other": [0.2]})
    (empty / "results.csv").unlink()
    assert "empty" not in verdict_table(verdict_rows([read_experiment(empty), read_experiment(several)]))
    assert verdict_table(verdict_rows([read_experiment(empty)])).endswith("Of 0 hypotheses: none.")


def test_an_edge_of_the_search_is_told_from_other_reasons(several, monkeypatch):
    monkeypatch.setattr("dcinterp.train.control.experiment.Experiment.worse_at_an_edge", lambda *_: ["plain"])
    found = verdicts(read_experiment(several))
    assert {each.word for each in found} == {"open"}
    assert all(each.at_an_edge for each in found)
    interim = verdicts(changed(several, seeds=[0, 1, 2, 3, 4]))
    assert [(each.word, each.at_an_edge) for each in interim] == [("no verdict", False)] * 3
    changed(several, seeds=[0, 1, 2, 3])
    monkeypatch.undo()
    assert [each.at_an_edge for each in verdicts(read_experiment(several))] == [False] * 3, "H3 is open, at no edge"
    monkeypatch.setattr("dcinterp.train.control.experiment.Experiment.worse_at_an_edge", lambda *_: ["plain"])
    text = verdict_table(verdict_rows([read_experiment(several)]))
    assert text.count("| open † |") == 3
    assert text.endswith(f"3 open. {AT_AN_EDGE} It stands behind 3 of the 3 open.")
    tuning = yaml.safe_load((several / "experiment.yaml").read_text())["tuning"] | {"at_an_edge": "marked"}
    text = verdict_table(verdict_rows([changed(several, tuning=tuning)]))
    assert [word in text for word in ("| supported † |", "| refuted † |", "| open † |")] == [True, True, True]
    monkeypatch.undo()
    assert "†" not in verdict_table(verdict_rows([read_experiment(several)]))


def test_what_became_of_it_with_other_seeds_stands_beside(several):
    repeated(several, -0.3)
    rows = verdict_rows([read_experiment(several)])
    assert [(row[4], row[5].split(", ")[-1]) for row in rows] == [
        ("supported", "open"),
        ("refuted", "refuted"),
        ("open", "open"),
    ]
    became = "of 1 supported, 1 open; of 1 refuted, 1 refuted again; of 1 open, 1 open again"
    assert verdict_table(rows).endswith(f" 3 of them were asked again of other seeds: {became}.")
    first, second, third, *_ = verdict_lines(read_experiment(several))
    assert [line.split(" With other seeds: ")[1].split(", ")[-1] for line in (first, second, third)] == [
        "open.",
        "refuted.",
        "open.",
    ]
    again = verdict_lines(read_experiment(several, table=several / "replication.csv"))
    assert not any("With other seeds" in line for line in again), "a repetition is not its own"
    assert rows[0][5].startswith("-0.000 [") or rows[0][5].startswith("+0.000 [")
    assert read_experiment(several).fresh_seeds() == "14-17"


def test_other_seeds_are_judged_at_the_level_that_was_asked_for(several):
    """At 95 % the interval is the same; at 99.99 % it includes zero, and the file's own seeds are judged as before."""
    repeated(several, -0.27)
    asked = yaml.safe_load((several / "experiment.yaml").read_text())["hypotheses"]
    (at_95, *_), (at_more, *_) = (
        verdict_rows([changed(several, hypotheses=[one | {"again": level} for one in asked])])
        for level in (0.95, 0.9999)
    )
    interval, word = at_95[5].rsplit("], ", 1)
    assert word in ("supported", "supported (open if corrected)")
    first, second = at_more[5].split(", at 99.99 % ")
    assert first == f"{interval}]"
    wider = re.fullmatch(r"\[([-+.\d]+), ([-+.\d]+)\], open", second)
    narrow = re.fullmatch(r"[-+.\d]+ \[([-+.\d]+), ([-+.\d]+)\]", first)
    assert float(wider[1]) < 0 < float(narrow[1])
    assert float(wider[2]) > float(narrow[2])
    assert at_more[:5] == at_95[:5]
    experiment = read_experiment(several)
    page = page_of(experiment, "picture.svg")
    assert page.count("**open** at 99.99 %") == 2
    assert "the verdict goes\nby it" in page
    again = verdict_lines(read_experiment(several, table=several / "replication.csv"))
    assert not any("Corrected" in line for line in again), "a correction's intervals would be narrower"
    assert any("Corrected" in line for line in verdict_lines(experiment))


def test_what_must_not_lie_below_zero_is_not_called_refuted_where_it_is_open(several, monkeypatch):
    monkeypatch.setattr("dcinterp.train.control.experiment.Experiment.worse_at_an_edge", lambda *_: ["worse"])
    *_, claim = verdict_lines(changed(several, claim={"says": "it helps", "needs": ["H1"], "same": {"H2": 0.03}}))
    assert claim.endswith("**not made** (H1 is open; H2 lies below zero, so H1 may only say what was learnt).")


def test_its_own_seeds_are_no_other_ones(several):
    (several / "replication.csv").write_bytes((several / "results.csv").read_bytes())
    with pytest.raises(UserError, match=r"replication.csv has seeds \[0, 1, 2, 3\], which .*several reports itself"):
        verdict_lines(read_experiment(several))


def test_a_claim_is_asked_again_of_other_seeds(several):
    repeated(several, -0.3)
    experiment = changed(several, claim={"says": "it helps", "needs": ["H1"]})
    rows = verdict_rows([experiment])
    assert rows[-1][4:] == ("made", "not made")
    assert verdict_lines(experiment)[3].endswith("**made**. With other seeds: not made.")
    assert " 3 of them were asked again" in verdict_table(rows), "hypotheses, without the claim"


def test_seeds_of_tables_beside_it_are_passed_over(several, write_experiment):
    """Those of reported runs, of searches and of repetitions: a page suggests none whose outcome may be known."""
    assert read_experiment(several).fresh_seeds() == "4-7"
    other = write_experiment(several.parent / "other", {"plain": PLAIN.tolist(), "better": PLAIN.tolist()})
    rows = pd.read_csv(other / "results.csv")
    for folder, name, shift in ((other, "results.csv", 6), (other, "replication.csv", 11)):
        rows.assign(**{"recipe.seed": rows["recipe.seed"] + shift}).to_csv(folder / name, index=False)
    (several.parent / "no table").mkdir()
    (several.parent / "no table" / "results.csv").write_bytes(b"recipe.seed\nnine\n\xff")
    used = {
        int(seed) for name in ("results.csv", "replication.csv") for seed in pd.read_csv(other / name)["recipe.seed"]
    }
    first, last = map(int, read_experiment(several).fresh_seeds().split("-"))
    assert last - first == 3
    assert first > 3
    assert not used & set(range(first, last + 1))
    assert used & set(range(4, first)), "some were passed over"


def test_a_repetition_that_has_just_begun_is_not_shown(several):
    read = pd.read_csv(several / "results.csv")
    first = read[(read["stage"] == "final") & (read["arm"] == "plain")].iloc[:1].assign(**{"recipe.seed": 10})
    first["name"] = "final,plain,learning_rate=0.001,seed=10"
    search = read[read["stage"] == "tuning"]
    for rows, seeds in ((search, "4-7"), (pd.concat([search, first]), "11-14")):
        rows.to_csv(several / "replication.csv", index=False)
        experiment = read_experiment(several)
        assert {row[5] for row in verdict_rows([experiment])} == {""}
        assert "## With other seeds" not in page_of(experiment, "picture.svg")
        assert experiment.fresh_seeds() == seeds


def test_what_was_measured_of_other_seeds_alone_is_not_said_to_be_asked_again(several):
    repeated(several, -0.3)
    again = several / "replication"
    again.mkdir()
    for place, name in ((several, "more-ways.md"), (again, "more-ways.md"), (again, "more-new.md")):
        (place / name).write_text(f"## {name} of {place.name}\n\nNumbers.\n", encoding="utf-8")
    own, new, ways = more_of(read_experiment(several))
    assert own == "## more-ways.md of several\n\nNumbers.\n"
    assert new.startswith("## more-new.md of replication, with other seeds\n\nAsked of these seeds alone")
    assert ways.startswith("## more-ways.md of replication, with other seeds\n\nAsked again")


@pytest.mark.parametrize("table", ["results.csv", "replication.csv"])
def test_a_run_of_another_config_is_said_and_not_passed_over(several, table):
    """Neither the experiment nor what its repetition found may vanish from what is printed."""
    repeated(several, 0.0)
    rows = pd.read_csv(several / table)
    pd.DataFrame(rows.assign(digest="0" * 16)).to_csv(several / table, index=False)
    with pytest.raises(UserError, match=f"{table} has a run .* that was made with another config"):
        verdict_rows([read_experiment(several)])


def test_a_repetition_without_a_run_of_every_arm_is_not_there_yet(several):
    repeated(several, 0.0)
    rows = pd.read_csv(several / "replication.csv")
    rows[(rows["arm"] != "worse") | (rows["stage"] != "final")].to_csv(several / "replication.csv", index=False)
    assert all(row[5] == "" for row in verdict_rows([read_experiment(several)]))
    assert not_repeated([read_experiment(several)]).endswith(" took: several (hours unknown).")
    repeated(several, 0.0)
    assert "several" not in not_repeated([read_experiment(several)])
    (several / "replication.csv").unlink()
    own = pd.read_csv(several / "results.csv")
    own[(own["arm"] != "worse") | (own["stage"] != "final")].to_csv(several / "results.csv", index=False)
    assert "several" not in not_repeated([read_experiment(several)]), "not all arms have a run"
