"""What the scripts of `parts_longer` and `parts_four_layers` say is what their tables hold."""

from __future__ import annotations

import dataclasses

import pytest
from experiment_scripts import FOLDER, script

import dcinterp
from dcinterp.evidence.intervals import interval_text
from dcinterp.evidence.verdicts import comparison, replication, side_of_zero
from dcinterp.support.errors import UserError
from dcinterp.train.control.experiment_file import read_experiment


def test_every_hypothesis_is_shown_at_both_levels():
    """On the runs of `parts`, which has the same hypotheses and fewer seeds."""
    module, experiment = script("parts_longer", "verdicts"), read_experiment(FOLDER / "parts")
    found, text = comparison(experiment, None), module.summary(experiment)
    apart = found.by_seed(["plain"], ["all"])
    narrow, wide = (interval_text(*found.between(["plain"], ["all"], level), sign="+") for level in (0.95, 0.99))
    assert f"| H1: plain minus all | {narrow} | {wide} | {int((apart > 0).sum())} of {len(apart)} |" in text
    assert narrow != wide
    assert len([line for line in text.splitlines() if line.startswith("| H")]) == len(experiment.hypotheses)
    with pytest.raises(UserError, match=r"5 of 6 seeds"):
        module.summary(dataclasses.replace(experiment, seeds=(*experiment.seeds, 99)))


def test_how_far_words_hang_on_the_draws_is_counted():
    """On the other seeds of `parts`, whose words are on its page."""
    module = script("parts_longer", "draws")
    again = replication(read_experiment(FOLDER / "parts"))
    rows = [line for line in module.summary(again).splitlines() if line.startswith("| H")]
    assert [row.split(" | ")[3] for row in rows] == ["below zero"] * 4 + ["holds zero"]
    assert all(row.endswith("0 of 40 |") or row.endswith("39 of 40 |") for row in rows)
    assert [side_of_zero(*ends) for ends in ((0.1, 0.2), (-0.1, 0.2), (-0.2, -0.1), (0.0, 0.2), (-0.2, 0.0))] == [
        1,
        0,
        -1,
        0,
        0,
    ]
    with pytest.raises(UserError, match=r"10 of 11 seeds"):
        module.summary(dataclasses.replace(again, seeds=(*again.seeds, *range(900, 901 + len(again.seeds)))))


def test_two_sizes_are_shown_side_by_side():
    module = script("parts_four_layers", "both_sizes")
    two, four = (dcinterp.compare_arms(str(FOLDER / name)) for name in ("parts", "parts_four_layers"))
    text = module.summary(two, four)
    assert text == (FOLDER / "parts_four_layers" / "more.md").read_text(encoding="utf-8")
    arms = [arm for arm in four.arms if not arm.startswith("plain")]
    assert module.alike(two, two, arms) == pytest.approx(1.0)
    assert module.alike(two, dataclasses.replace(two, difference=-two.difference), arms) == pytest.approx(-1.0)
