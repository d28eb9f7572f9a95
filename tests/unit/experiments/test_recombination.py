"""Questions, circuits and mechanisms of `recombination`, and what its scripts say of them."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from experiment_scripts import FOLDER, script

from dcinterp.evidence.questions.recombination import questions
from dcinterp.evidence.trained_models import folder_option
from dcinterp.train.config.recipe import PuzzleSection
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.data.puzzle_source import PuzzleSource


def test_the_branch_that_costs_most_is_counted_by_seed():
    module = script("recombination", "mechanism")
    rows = [
        {"seed": seed, "part": part, "kind": kind, "seen": seen, "held-out": seen / 2}
        for seed in range(3)
        for part, kind, seen in (
            ("intact", "", 1.0),
            ("post.qp", "mean", 0.3 + 0.1 * seed),
            ("post.kp", "mean", 0.45),
            ("all", "mean", 0.1),
            ("post.kp", "zero", 0.0),
        )
    ]
    text = module.summary(pd.DataFrame(rows))
    assert "of 3 seeds: by its mean `post.qp` in 2, `post.kp` in 1 (0.550 to 0.700 each); by zero" in text
    none = "(all the same, so no interval)"
    assert f"| post.kp | mean | -0.550 {none} | -0.275 {none} |" in text
    assert "| post.qp | mean | -0.600" in text


def test_branches_that_cost_the_same_are_counted_together():
    parts = [("intact", "", 1.0), ("post.qp", "mean", 0.5), ("post.kp", "mean", 0.5), ("pre.qp", "mean", 0.7)]
    rows = [{"seed": 0, "part": part, "kind": kind, "seen": seen} for part, kind, seen in parts]
    found = script("recombination", "mechanism").costliest(pd.DataFrame(rows), "mean", "seen")
    assert found == "`post.qp` and `post.kp` in 1 (0.500 to 0.500 each)"


@pytest.fixture
def circuits() -> Any:
    """experiments/recombination/circuits.py as a module."""
    return script("recombination", "circuits")


@pytest.mark.parametrize("part", ["seen", "held-out"])
@pytest.mark.parametrize("change", ["key", "letter", "key and letter", "relation"])
def test_a_question_and_its_counterfactual_differ_in_one_thing(tmp_path, part, change):
    source = PuzzleSource(PuzzleSection(name="recombination"), tmp_path)
    pairs = source.puzzle.pairs(part)
    documents = source.held_out(part, 40)["input_ids"]

    def answer_of(prompt: str) -> tuple[str, str]:
        """(the letter that is found, the letter that is said), and that the question is of this part."""
        *facts, relation, key = prompt.split()[1:]
        (fact,) = (fact.split("-") for fact in facts if key in fact.split("-"))
        assert (fact.index(key), int(relation)) in pairs
        return fact[2], "ABCDEFGH"[("ABCDEFGH".index(fact[2]) + int(relation)) % 8]

    for ids, (prompt, answer, other, foil) in zip(documents, questions(source, part, change, 40), strict=True):
        assert source.tokenizer(prompt, add_special_tokens=False)["input_ids"] == ids[:7].tolist(), "as in training"
        assert answer == answer_of(prompt)[1] == source.tokenizer.convert_ids_to_tokens(int(ids[7]))
        assert foil != answer
        first, second = prompt.split(), other.split()
        differ = [at for at in range(7) if first[at] != second[at]]
        if change in ("key", "relation"):
            assert differ == [6 if change == "key" else 5]
        else:
            assert len(differ) == 2 + (change == "key and letter")
            assert max(differ) == (6 if change == "key and letter" else max(differ[:2]))
        if change == "key and letter":
            assert answer_of(other) == answer_of(prompt)
        else:
            assert foil == answer_of(other)[1]


def test_the_words_on_circuits_are_those_of_the_table(circuits):
    rows = pd.read_csv(FOLDER / "recombination" / "circuits.csv")
    experiment = read_experiment(FOLDER / "recombination")
    written = (FOLDER / "recombination" / "more-circuits.md").read_text(encoding="utf-8")
    assert written == circuits.summary(rows, experiment)
    for _, own in rows.groupby("arm"):
        assert set(own["seed"]) == set(experiment.seeds)
    assert (rows["share"].notna() == (rows["seen"] >= experiment.solved_at)).all()


def test_the_words_on_runs_made_again_are_those_of_the_table():
    module, folder = script("recombination", "again"), FOLDER / "recombination"
    rows, experiment = pd.read_csv(folder / "again.csv"), read_experiment(folder)
    text = (folder / "more-again.md").read_text(encoding="utf-8")
    assert text == module.summary(rows, experiment)
    assert rows.groupby(["arm", "attention"])["seed"].agg(set).eq(set(experiment.seeds)).all()
    same = (
        pd.read_csv(folder / "circuits.csv")
        .drop_duplicates(["arm", "seed"])
        .merge(rows[rows["attention"] == "auto"], on=["arm", "seed"])
    )
    assert len(same) == 20
    assert (same["seen_x"] - same["seen_y"]).abs().max() < 1e-3, "circuits are those of these models"


@pytest.mark.parametrize("folder", sorted(FOLDER.glob("*/mechanism.csv")), ids=lambda file: file.parent.name)
def test_the_words_on_mechanisms_are_those_of_the_tables(folder):
    module, option = script("recombination", "mechanism"), folder_option(folder.parent, FOLDER / "recombination")
    if (again := folder.parent / "replication" / folder.name).is_file():
        table = f" --table experiments/{folder.parent.name}/replication.csv"
        told = module.summary(pd.read_csv(again), options=option + table)
        assert (again.parent / "more.md").read_text(encoding="utf-8") == told
    assert (folder.parent / "more.md").read_text(encoding="utf-8") == module.summary(
        pd.read_csv(folder), options=option
    )


def test_a_named_way_is_held_against_the_largest_other_and_maps_of_no_token_have_no_weights():
    """Of other seeds alone; an arm whose maps are the same for all tokens has no way through dynamic weights."""
    module, folder = script("recombination", "circuits"), FOLDER / "recombination"
    again = read_experiment(folder, table=folder / "replication.csv")
    rows = pd.read_csv(folder / "replication" / "circuits.csv")
    text = module.one_way(rows, again)
    (table, *_) = text.split("On `seen`:\n\n")[1].split("\n\n")
    cells = {
        line.split("|")[1].strip(): [each.strip() for each in line.split("|")[2:-1]] for line in table.splitlines()
    }
    assert [bool(each) for each in cells["L1 post weights"]] == [False, False, False, False, True]
    assert all(cells["L1 query"])
    fewer = rows[~((rows["arm"] == "plain") & rows["seed"].isin([470, 471, 472, 473, 474]))]
    assert "(in plain, *L0 -> L1 query* minus the largest other way is above zero): interim, 5 of 10" in module.one_way(
        fewer, again
    )
    assert "## By which way" not in module.summary(pd.read_csv(folder / "circuits.csv"), read_experiment(folder))
