"""Arms of an experiment are compared seed by seed, and their intervals are those of paired differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dcinterp
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.support.errors import UserError


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
    assert float(high - low) < 0.1 < float(found.high[0] - found.low[0]), "pairs leave out what the documents do"
    assert "includes 0" not in found.sentences()[0]


def test_an_interval_around_zero_is_no_difference(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.9, 0.5], "composed": [0.9, 0.1, 0.6]})
    found = dcinterp.compare_arms(str(folder))
    assert "includes 0" in found.sentences()[0]
    assert any("3 seeds" in warning for warning in found.warnings())


def test_differences_are_of_seeds_that_have_both_runs(tmp_path, write_experiment):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2, float("nan")], "composed": [0.3, 0.4, 0.9]})
    found = dcinterp.compare_arms(str(folder))
    assert float(found.difference[1]) == pytest.approx(0.2)
    assert any("1 runs are missing" in warning for warning in found.warnings())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"measure": "accuracy 1 held"}, "accuracy 1 held-out"),
        ({"baseline": "plan"}, "plain"),
        ({"table": "nowhere.csv"}, "No run"),
    ],
)
def test_what_is_missing_is_named(tmp_path, write_experiment, arguments, says):
    folder = write_experiment(tmp_path / "e", {"plain": [0.1, 0.2], "composed": [0.3, 0.4]})
    with pytest.raises(UserError, match=says):
        dcinterp.compare_arms(str(folder), **arguments)
