"""Accuracy on the tasks as a result: the numbers of the evaluation, in every table."""

from __future__ import annotations

import pytest

import dcinterp
import synthetic_tasks
from dcinterp.support.errors import UserError


@pytest.fixture(scope="module")
def scores(shipped):
    return dcinterp.task_accuracy(shipped, tasks="same-object,56,57", rows=2, examples=4, seed=3)


def test_the_numbers_are_those_of_the_evaluation(shipped, scores):
    rows = synthetic_tasks.generate("task56", 2, 3, examples=4, split="held-out")
    evaluation = synthetic_tasks.evaluate(shipped, rows)
    at = scores.tasks.index("task56")
    assert float(scores.right[at].mean()) == pytest.approx(evaluation.accuracy)
    assert float(scores.logprob[at].sum()) == pytest.approx(sum(r["logprob"] for r in evaluation.records), rel=1e-4)
    assert float(scores.fact_unif[at]) == pytest.approx(evaluation.baseline["task56"]["fact-unif"])


@pytest.mark.parametrize("by", ["all", "pattern", "transformation", "family", "task", "shots"])
def test_every_table_is_a_mean_of_the_same_answers(scores, by):
    table = scores.table(by)
    total = (table["accuracy"] * table["answers"]).sum() / table["answers"].sum()
    assert table["answers"].sum() == scores.right.numel()
    assert total == pytest.approx(scores.accuracy)
    inside = table.dropna()
    assert ((inside["low"] <= inside["accuracy"]) & (inside["accuracy"] <= inside["high"])).all()


def test_partner_tasks_share_clusters(scores):
    # Tasks 56 and 57 are partners: two rows are two clusters, not four.
    pair = [scores.tasks.index(task) for task in ("task56", "task57")]
    assert scores.partners[pair[0]] == scores.partners[pair[1]]


def test_partial_results_come_while_it_runs(shipped):
    seen = []

    def progress(done, total, message=""):
        assert 0 < done <= total

    progress.partial = seen.append
    whole = dcinterp.task_accuracy(shipped, tasks="0-5", rows=1, examples=2, progress=progress)
    assert [len(part.tasks) for part in seen] == [4]
    assert seen[0].right.equal(whole.right[:4])


def test_progress_comes_batch_by_batch(shipped):
    seen = []
    dcinterp.task_accuracy(
        shipped, tasks="0,1", rows=3, examples=2, batch_size=2, progress=lambda *now: seen.append(now)
    )
    assert seen == [(2, 6, "task0"), (3, 6, "task0"), (5, 6, "task1"), (6, 6, "task1")]


def test_bad_input_is_one_sentence(shipped):
    for arguments, words in (
        ({"tasks": "task99"}, "task99"),
        ({"rows": 0}, "at least 1"),
        ({"split": "tset"}, "no split"),
        ({"tasks": "0", "rows": 1, "examples": 60}, "fewer examples"),
        ({"tasks": "0", "rows": 1, "examples": 10**10}, "10,000,000,000 examples does not fit"),
    ):
        with pytest.raises(UserError, match=words):
            dcinterp.task_accuracy(shipped, **arguments)


def test_the_former_name_of_a_baseline_still_works(scores):
    with pytest.warns(DeprecationWarning, match="polarity_blind is called ignores_negation now"):
        assert scores.polarity_blind.equal(scores.ignores_negation)
    assert not scores.ignores_negation.isnan().any()
