"""Which ways return over seeds, of what was measured of the models of an experiment."""

from pathlib import Path
from shutil import copytree, ignore_patterns

import pandas as pd
import pytest

from dcinterp.evidence.motifs import COLUMNS, motif_rows, motif_table, motifs, not_looked_into
from dcinterp.evidence.ways_out import POST_WEIGHTS, QUERY
from dcinterp.train.control.experiment_file import read_experiment

ROOT = Path(__file__).parents[3] / "experiments"


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of an experiment in which one arm was never looked into, and one model of another has no clear way."""
    root = tmp_path_factory.mktemp("experiments")
    for name in ("lookup", "lookup_longer"):
        copytree(ROOT / name, root / name, ignore=ignore_patterns("replication*"))
    table = root / "lookup_longer" / "circuits.csv"
    rows = pd.read_csv(table)
    rows = rows[rows["arm"] != "plain with MLP longer"]
    first = (rows["arm"] == "DCMHA") & (rows["seed"] == 310) & (rows["change"] == "relation")
    rows.loc[first & rows["group"].astype(str).str.startswith("L0 -> "), "share"] = 0.14
    rows.to_csv(table, index=False)
    return root / "lookup_longer"


def test_a_row_counts_the_models_of_an_arm_by_their_largest_way(longer):
    found = {each.arm: each for each in motifs([read_experiment(longer)])}
    wider, composed, local = found["plain wider longer"], found["DCMHA"], found["pre only"]
    assert (wider.trained, wider.learnt, wider.asked) == (10, 10, 10)
    assert wider.largest["relation"] == {QUERY: 10}
    assert composed.largest["relation"] == {POST_WEIGHTS: 9, "": 1}
    assert (local.learnt, local.asked, local.largest) == (0, 0, {})
    assert "plain deeper" not in found, "it has four layers"


def test_arms_that_learnt_it_and_were_not_looked_into_are_named(longer):
    found = motifs([read_experiment(longer)])
    rows = motif_rows(found)
    assert {row[1] for row in rows} == {"plain wider longer", "post only", "DCMHA"}
    assert all(len(row) == len(COLUMNS) for row in rows)
    (composed,) = (row for row in rows if row[1] == "DCMHA")
    assert "relation: L1 post weights (9), none with 15% (1); letter: L1 value (10)" in composed[4]
    assert not_looked_into(found) == (
        "30 models were looked into; 40 learnt their puzzle. Of these arms none was, with how many learnt "
        "it: lookup_longer, seeds 310 to 319 (plain with MLP longer 10)."
    )
    table = motif_table(found, "pages").splitlines()
    assert table[2].startswith("| [lookup_longer](pages/lookup_longer.md), seeds 310 to 319 | plain wider longer |")
    assert table[3].startswith("|  | post only |")


def test_likeness_is_the_mean_over_pairs_of_models_and_unknown_for_one(longer):
    rows = pd.read_csv(longer / "circuits.csv").dropna(subset=["share"])
    own = rows[(rows["arm"] == "post only") & (rows["change"] == "letter")]
    wide = own.pivot_table(index="group", columns="seed", values="share")
    some = wide[(wide.abs() >= 0.05).any(axis=1)]
    pairs = some.corr().to_numpy()
    expected = (pairs.sum() - len(pairs)) / (len(pairs) * (len(pairs) - 1))
    (found,) = (each for each in motifs([read_experiment(longer)]) if each.arm == "post only")
    assert found.alike["letter"] == pytest.approx(expected)


def test_a_repetition_has_rows_of_its_own_and_experiments_without_puzzles_none():
    found = motifs([read_experiment(ROOT / name) for name in ("pairing", "ablations", "recombination_tasks")])
    assert {each.experiment for each in found} == {"pairing"}
    assert [(each.seeds, each.asked) for each in found if each.arm == "DCMHA"] == [
        ("200 to 209", 0),
        ("210 to 219", 10),
    ]
