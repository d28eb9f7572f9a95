"""The split of a curve is the one of least squares, and its interval covers the split of the true curve."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dcinterp.mechanism.change_point import change_points, split
from dcinterp.support.errors import UserError


def test_the_split_is_that_of_least_squares():
    curves = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 5)).cumsum(0))
    place, explained = split(curves)
    for curve, at, share in zip(curves.T, place.tolist(), explained.tolist(), strict=True):
        left = [float(curve[:k].var(correction=0) * k + curve[k:].var(correction=0) * (12 - k)) for k in range(1, 12)]
        assert at == 1 + int(np.argmin(left))
        assert share == pytest.approx(1 - min(left) / float(curve.var(correction=0) * 12))


def test_a_step_is_found_whole_and_a_constant_curve_has_none():
    curves = torch.tensor([[0.0, 1.0]] * 4 + [[1.0, 1.0]] * 3)
    place, explained = split(curves)
    assert place[0] == 4
    assert explained.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("width", [0.4, 3.0])
def test_the_interval_covers_the_split_of_the_true_curve(width):
    """A rise of several widths, between examples that differ in where and how far they rise."""
    random, checkpoints, examples, trials = np.random.default_rng(1), 25, 24, 120
    at = np.arange(checkpoints)[:, None]

    def drawn(n: int) -> np.ndarray:
        middle, height = random.normal(11, 2.5, n), random.lognormal(0, 0.4, n)
        return height / (1 + np.exp(-(at - middle) / width)) + random.normal(0, 0.2, (checkpoints, n))

    true, _ = split(torch.from_numpy(drawn(200_000).mean(1, keepdims=True)))
    curves = torch.from_numpy(np.stack([drawn(examples) for _ in range(trials)], 1))
    found = change_points(torch.arange(checkpoints), curves, resamples=300)
    covered = ((found.low <= true) & (true <= found.high)).double().mean()
    assert float(covered) >= 0.9
    assert float((found.high - found.low).double().mean()) < 6


def test_a_line_holds_three_quarters_and_a_fall_is_told_from_a_rise():
    line = torch.linspace(0, 1, 50)
    curves = torch.stack([line, 1 - line], 1)[..., None].expand(-1, -1, 3)
    found = change_points(torch.arange(50), curves, resamples=10)
    assert found.explained.tolist() == pytest.approx([0.75, 0.75], abs=0.01)
    assert found.rise[0] > 0 > found.rise[1]


def test_two_checkpoints_are_too_few():
    with pytest.raises(UserError, match="needs 3 checkpoints or more, and there are 2"):
        change_points(torch.arange(2), torch.zeros(2, 1, 4))
