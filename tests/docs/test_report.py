"""The report says what its tables show, writes only between its markers, and knows when it is out of date."""

from __future__ import annotations

import re

import pytest
import torch
from sitetools.report import PARTS, ablation_says, command, measure, stale, write

import dcinterp
from dcinterp import UserError
from dcinterp.analysis.intervention.branch_ablation import BranchAblation

DOCUMENT = "Before.\n" + "".join(f"<!-- report:{name} -->\nold\n<!-- end -->\nBetween {name}.\n" for name in PARTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def report(folder):
    return measure("dcformer++", "transformer++", tasks="56,57", rows=1, case_studies=1, folder=folder)


def ablation(change, low, high, guess=(0.3, 0.3)):
    """Two patterns, and the parts intact, post.kp, post.qg and all."""
    change, low, high = (torch.tensor([[0.0, 0.0], *rows]) for rows in (change, low, high))
    accuracy = torch.tensor([[0.9, 0.35]]) + change
    return BranchAblation(
        parts=("intact", "post.kp", "post.qg", "all"), patterns=("sets", "persons"), kind="zero", rows=1, examples=8,
        seed=0, accuracy=accuracy, low=accuracy - 0.1, high=accuracy + 0.1, change=change, change_low=low,
        change_high=high, answers=torch.tensor([60, 60]), clusters=torch.tensor([20, 20]), guess=torch.tensor(guess),
    )  # fmt: skip


def test_sentences_say_what_the_intervals_allow():
    result = ablation(
        change=[[-0.4, 0.1], [0.02, 0.0], [-0.5, 0.0]],
        low=[[-0.5, 0.05], [-0.01, -0.1], [-0.6, -0.1]],
        high=[[-0.3, 0.2], [0.05, 0.1], [-0.4, 0.1]],
    )
    sets, persons = ablation_says(result)
    assert "changes by -50.0 (-60.0 to -40.0) points; the interval excludes zero" in sets
    assert "lowers accuracy: post.kp -40.0 (-50.0 to -30.0)." in sets
    assert "post.qg" not in sets
    assert "says nothing about how a fact is chosen" in persons
    assert "post.kp" not in persons, "no branch is named where the model guesses"


def test_sentences_when_nothing_is_certain_and_when_a_removal_helps():
    unsure = ablation(change=[[-0.1, 0]] * 3, low=[[-0.3, 0]] * 3, high=[[0.1, 0]] * 3)
    said = "the interval includes zero. For no single branch does the interval lie below zero"
    assert said in ablation_says(unsure)[0]
    helps = ablation(change=[[0.05, 0]] * 3, low=[[0.01, 0]] * 3, high=[[0.08, 0]] * 3)
    assert "For post.kp, post.qg accuracy is higher." in ablation_says(helps)[0]


def test_writes_between_the_markers_alone(report, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(DOCUMENT)
    assert write(page, report) == list(PARTS)
    text = page.read_text()
    assert re.sub(r"(report:[\w-]+ -->\n).*?(\n<!-- end)", r"\1old\2", text, flags=re.S) == DOCUMENT
    assert write(page, report) == [], "writing again changes nothing"
    accuracy = float(report.ablation.accuracy[0, 0])
    assert f"| nothing |  | {100 * accuracy:.1f} (" in text
    assert "dcinterp analyze branch-ablation dcformer++ --tasks 56,57 --rows 1" in text
    assert "of 1 |" in text


def test_knows_when_the_weights_are_others(report, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(DOCUMENT)
    assert stale(page, "dcformer++", "transformer++") == ["dcformer++", "transformer++"]
    write(page, report)
    assert stale(page, "dcformer++", "transformer++") == []
    page.write_text(page.read_text().replace(report.fingerprints[1], "0" * 16))
    assert stale(page, "dcformer++", "transformer++") == ["transformer++"]
    with pytest.raises(UserError, match="transformer\\+\\+; run it again"):
        command(page, check=True)


def test_goes_on_from_what_is_kept(report, folder, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("this result was kept")

    monkeypatch.setattr("sitetools.report.branch_ablation", never)
    monkeypatch.setattr("sitetools.report.case_study", never)
    again = measure("dcformer++", "transformer++", tasks="56,57", rows=1, case_studies=1, folder=folder)
    assert torch.equal(again.ablation.accuracy, report.ablation.accuracy)
    with pytest.raises(AssertionError, match="was kept"):
        measure("dcformer++", "transformer++", tasks="56,57", rows=2, case_studies=1, folder=folder)


def test_the_ablation_and_the_accuracy_are_of_the_same_rows(report):
    assert float(report.ablation.accuracy[0, 0]) == pytest.approx(report.accuracies[0].accuracy)


def test_a_document_without_the_markers_is_refused(report, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- report:models -->\n<!-- end -->\n")
    with pytest.raises(UserError, match="must have the markers"):
        write(page, report)


def test_the_page_is_that_of_the_shipped_weights():
    """Run `make report` after the shipped models were replaced."""
    from pathlib import Path

    page = Path(dcinterp.__file__).parents[1] / "docs" / "what-composition-does.md"
    assert stale(page, "dcformer++", "transformer++") == []
