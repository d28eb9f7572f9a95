"""Numbers beside zero, beside one, and on the other side: what pages print of them agrees with what they say."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from dcinterp.analysis.attribution.calibrate import _correlation, _share_interval
from dcinterp.evidence.intervals import interval_text
from dcinterp.evidence.sign_verdict import sign_verdict
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.support.text import beside


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((0.00045, 0.0004, 0.0006), "+0.0004 [+0.0004, +0.001]"),
        ((-0.0004, -0.0008, -0.0001), "-0.0004 [-0.001, -0.0001]"),
        ((0.0004, -0.002, 0.003), "+0.000 [-0.002, +0.003]"),
        ((0.1, -1e-17, 0.3), "+0.100 [+0.000, +0.300]"),
        ((1e-5, 8e-6, 3e-5), "+0.00001 [+8e-06, +0.00003]"),
    ],
)
def test_a_mean_lies_inside_of_its_interval_as_printed(numbers, said):
    assert interval_text(*numbers, sign="+") == said
    middle, low, high = (float(part.strip("[,]")) for part in said.split())
    assert low <= middle <= high


def test_a_sign_test_that_says_the_other_side_supports_nothing():
    """Fifteen below zero are more than chance, and five large ones carry the mean."""
    shares = pd.DataFrame({"a": [-0.01] * 15 + [1.0] * 5})
    assert "**open**" in sign_verdict(shares, "a", 0.0, trained=20, seeds=20)
    assert "**open**" in sign_verdict(-shares, "a", 0.0, trained=20, seeds=20)


def test_a_small_share_that_is_supported_is_not_printed_as_zero():
    shares = pd.DataFrame({"a": [0.004, 0.005, 0.006, 0.004, 0.005, 0.006, 0.004, 0.005, 0.006, 0.005]})
    said = sign_verdict(shares, "a", 0.0, trained=10, seeds=10)
    assert "**supported**" in said
    middle, low, high = (float(part.strip("[,]")) for part in said.split()[:3])
    assert 0 < low <= middle <= high


def test_a_number_beside_a_point_tells_its_side():
    assert beside(1.0049, 1) == "1.005"
    assert beside(0.9964, 1) == "0.996"
    assert beside(1.0, 1) == "1.00"
    assert beside(0.4, 0, 0, "+") == "+0.4"
    assert beside(3.30, 1) == "3.30"


def test_one_share_beside_the_bound_does_not_narrow_the_interval():
    whole, beside_it = torch.ones(10), torch.tensor([1.0] * 9 + [0.98])
    least = float(bootstrap_interval(whole, bounds=(0, 1))[0])
    assert float(bootstrap_interval(beside_it, bounds=(0, 1))[0]) > 0.95, "what resamples say"
    low, high = _share_interval(beside_it, level=0.95, seed=0, groups=list(range(10)))
    assert float(low) == pytest.approx(least, abs=1e-6)
    assert float(high) == 1


def test_small_effects_correlate_as_large_ones_do():
    numbers = torch.tensor([1.0, 2.0, 3.0])
    assert _correlation(numbers * 1e-7, numbers * 1e-7) == pytest.approx(1)
    assert _correlation(numbers, torch.ones(3)) != _correlation(numbers, torch.ones(3)), "NaN, and no zero"
