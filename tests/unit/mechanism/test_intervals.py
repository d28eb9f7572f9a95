"""Intervals of the mean of a few examples, by simulation; see bootstrap_interval for what they reach.

FULL_SIMULATION=1 pytest -s tests/unit/mechanism/test_intervals.py runs more of it and prints a table.
"""

from __future__ import annotations

import math
import os
from functools import partial

import pytest
import torch
from scipy.special import stdtrit

from dcinterp.mechanism.statistics import bootstrap_interval, ratio_interval
from dcinterp.support.errors import UserError

FULL = bool(os.environ.get("FULL_SIMULATION"))
TRIALS = 10_000 if FULL else 2500
FEW = (3, 4, 5, 7, 10, 15, 20) if FULL else (3, 5, 10, 20)
KINDS = {
    # name: (data [example, trial] from normal numbers, their mean, coverage to reach)
    "normal": (lambda z: z, 0.0, 0.945),
    "exponential": (lambda z: -torch.special.log_ndtr(z), 1.0, 0.92),
    "lognormal": (torch.exp, math.exp(0.5), 0.885),
    "negative": (lambda z: torch.special.log_ndtr(z), -1.0, 0.92),
}


def student(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    reach = float(stdtrit(len(x) - 1, 0.975)) * x.std(0) / math.sqrt(len(x))
    return x.mean(0) - reach, x.mean(0) + reach


def percentiles(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What version 0.1 used."""
    drawn = x[torch.randint(len(x), (400, len(x)), generator=torch.Generator().manual_seed(0))].mean(1)
    return drawn.quantile(0.025, dim=0), drawn.quantile(0.975, dim=0)


METHODS = {
    "ours": partial(bootstrap_interval, resamples=1000 if FULL else 300),
    "t": student,
    "percentiles": percentiles,
}


@pytest.fixture(scope="module")
def coverage() -> dict[tuple[str, str, int], float]:
    random = torch.Generator().manual_seed(0)
    found = {}
    for kind, (make, mean, _) in KINDS.items():
        for n in FEW:
            x = make(torch.randn(n, TRIALS, generator=random, dtype=torch.float64))
            for name, method in METHODS.items():
                low, high = method(x[:, :300] if name == "percentiles" else x)
                found[name, kind, n] = float(((low <= mean) & (mean <= high)).double().mean())
                if FULL:
                    width = float((high - low).median())
                    print(f"{name}, {kind}, n={n}: {found[name, kind, n]:.3f}, {width:.2f} wide")  # noqa: T201
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_of_a_few_is_covered(coverage, kind):
    for n in FEW:
        assert KINDS[kind][2] <= coverage["ours", kind, n] <= 0.985, n


def test_skewed_means_are_covered_better_than_by_t_and_normal_ones_than_by_percentiles(coverage):
    for n in FEW:
        for kind in ("exponential", "lognormal"):
            assert coverage["ours", kind, n] > coverage["t", kind, n] + 0.015
    assert coverage["percentiles", "normal", 3] < 0.8


TWO_HEAPS = 0.2
"""How many of all are of the rarer of two kinds."""


@pytest.mark.parametrize("level", [0.95, 0.99])
@pytest.mark.parametrize("n", [5, 10])
def test_levels_of_experiments_cover_less_where_tails_are_long_and_no_level_covers_a_kind_not_drawn(n, level):
    """Where words are decided at more than 95 %; docs/analyses.md has what FULL_SIMULATION=1 prints."""
    random = torch.Generator().manual_seed(0)
    normal = torch.randn(n, TRIALS, generator=random, dtype=torch.float64)
    heaps = (torch.rand(n, TRIALS, generator=random) < TWO_HEAPS).double() + 1e-3 * normal
    held = {}
    for kind, x, mean in (
        ("normal", normal, 0.0),
        ("exponential", -torch.special.log_ndtr(normal), 1.0),
        ("two heaps", heaps, TWO_HEAPS),
    ):
        low, high = bootstrap_interval(x, level=level, resamples=1000 if FULL else 300)
        held[kind] = float(((low <= mean) & (mean <= high)).double().mean())
        if FULL:
            print(f"{level:.0%}, {kind}, n={n}: {held[kind]:.3f}")  # noqa: T201
    assert held["normal"] >= level - 0.01
    assert held["exponential"] >= level - 0.03
    assert held["two heaps"] <= 1 - (1 - TWO_HEAPS) ** n + 0.03


@pytest.mark.parametrize("n", FEW)
def test_it_is_no_wider_than_it_must_be(n):
    """Between Student's t and the mean of it and REACH times it, and Student's t for many symmetric numbers."""
    x = torch.randn(n, 500, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    ours, t = (high - low for low, high in (bootstrap_interval(x), student(x)))
    assert bool((ours >= t * (1 - 1e-9)).all())
    assert bool((ours <= 1.75 * t * (1 + 1e-9)).all())
    assert n < 20 or float((ours / t).mean()) < 1.1


def test_examples_that_repeat_count_once():
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    alone = bootstrap_interval(x)
    twice = bootstrap_interval(x.repeat(2, 1), groups=[*range(12), *range(12)])
    for one, other in zip(alone, twice, strict=True):
        assert torch.allclose(one, other)
    narrow = bootstrap_interval(x.repeat(2, 1))
    assert bool((narrow[1] - narrow[0] < 0.85 * (alone[1] - alone[0])).all())


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.7, 1 / 3])
def test_values_that_lie_alike_on_both_sides_have_the_interval_of_t(shift):
    """Wherever they lie: which side of such values has the longer tail is not left to rounding."""
    x = torch.tensor([[0.1, 0.2, 0.3], [-0.4, 0.0, 0.4]], dtype=torch.float64).T + shift
    for ours, t in zip(bootstrap_interval(x), student(x), strict=True):
        assert torch.allclose(ours, t)


def test_shares_stay_within_their_bounds_and_all_right_is_not_certain():
    low, high = bootstrap_interval(torch.tensor([[1.0, 0.9], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]), bounds=(0, 1))
    assert high.tolist() == [1, 1]
    assert float(low[0]) == pytest.approx(0.025 ** (1 / 4))
    assert 0 <= float(low[1]) < 0.95


def test_one_example_has_no_interval_and_equal_ones_none_to_speak_of():
    assert all(bool(end.isnan()) for end in bootstrap_interval(torch.tensor([2.0])))
    assert all(bool(end.isnan()) for end in bootstrap_interval([1.0, 2.0], groups=["a", "a"]))
    assert bootstrap_interval([2.0, 2.0, 2.0]) == (2, 2)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_example_that_is_the_mean_itself_leaves_both_ends(sign):
    """Drawn over and over it has no error and is not off: neither end may be lost to 0 / 0."""
    values = sign * torch.tensor([0.0] * 8 + [-2.0, 1.0, 1.0], dtype=torch.float64)
    low, high = bootstrap_interval(values)
    assert float(low) < 0 < float(high)


def covered(name: str, low: torch.Tensor, high: torch.Tensor, mean: float) -> float:
    share = float(((low <= mean) & (mean <= high)).double().mean())
    if FULL:
        print(f"{name}: {share:.3f}, {float((high - low).median()):.2f} wide")  # noqa: T201
    return share


@pytest.mark.parametrize(
    "sizes",
    [[2] * 10, [2] * 15 + [1] * 10, [4, 2, 2, 1, 1, 1, 1], [6, 1, 1, 1, 1, 1, 1], [10, 1, 1], [8, 4, 2, 1, 1]],
    ids=str,
)
@pytest.mark.parametrize("alike", [1.0, 0.3])
def test_means_over_groups_of_unequal_size_are_covered(sizes, alike):
    """What the members of a group share is `alike` of their variance."""
    random, groups = torch.Generator().manual_seed(0), [i for i, size in enumerate(sizes) for _ in range(size)]
    shared, own = (torch.randn(n, TRIALS, generator=random, dtype=torch.float64) for n in (len(sizes), len(groups)))
    low, high = bootstrap_interval(alike**0.5 * shared[groups] + (1 - alike) ** 0.5 * own, groups=groups, resamples=300)
    assert covered(f"groups of {sizes}, alike by {alike}", low, high, 0.0) >= 0.935


@pytest.mark.parametrize(
    "sizes", [[2048] * 3 + [100] * 17, [2048] + [150] * 9, [2048, 1000, 500, 200, 100], [600] * 20], ids=str
)
def test_a_loss_over_files_of_unequal_length_is_covered(sizes):
    counts = torch.tensor(sizes, dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    losses = 2 + torch.randn(len(sizes), TRIALS, generator=random, dtype=torch.float64)
    low, high = ratio_interval(counts[:, None] * losses, counts, resamples=300)
    assert covered(f"files of {sizes}", low, high, 2.0) >= 0.925
    without = ratio_interval(torch.cat([counts * losses[:, 0], torch.zeros(1)]), [*sizes, 0], resamples=300)
    assert torch.allclose(torch.stack(without), torch.stack([low[0], high[0]]))


def test_units_of_one_size_have_the_interval_of_their_mean():
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    for one, other in zip(bootstrap_interval(x), ratio_interval(3 * x, [3] * 12), strict=True):
        assert torch.allclose(one, other)
    assert all(bool(end.isnan()) for end in ratio_interval([2.0, 0.0], [1, 0]))
    for parts, sizes in (([1.0, 2.0], [1]), ([1.0, 2.0], [1, -1]), ([1.0], [0])):
        with pytest.raises(UserError, match="give as many sizes as parts"):
            ratio_interval(parts, sizes)
