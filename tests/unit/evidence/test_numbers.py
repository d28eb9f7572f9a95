"""Numbers as pages write them."""

from __future__ import annotations

import pytest

from dcinterp.evidence.intervals import interval_text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0.0131, -0.00009, 0.0262), "+0.013 [-0.00009, +0.026]"),
        ((0.00005, -0.000061, 0.00034), "+0.00005 [-0.00006, +0.0003]"),
        ((0.2, 0.1, 0.3), "+0.200 [+0.100, +0.300]"),
        ((6e-7, 2e-7, 1e-6), "+6e-07 [+2e-07, +1e-06]"),
        ((0.1, 0.0, 0.2), "+0.100 [+0.000, +0.200]"),
    ],
)
def test_what_would_round_to_zero_keeps_its_side_without_an_exponent(numbers, text):
    assert interval_text(*numbers, sign="+") == text
