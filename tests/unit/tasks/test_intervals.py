"""Intervals of accuracies by simulation: how often they hold the truth, and how wide they are beside textbook ones.

The simulation here is a small part of the full one: FULL_SIMULATION=1 pytest -s tests/unit/tasks/test_intervals.py
takes some minutes and prints a table.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy.special import betaincinv, stdtrit

from synthetic_tasks.intervals import change_interval, share_interval

FULL = bool(os.environ.get("FULL_SIMULATION"))
TRIALS = 4000 if FULL else 1200
RATES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995) if FULL else (0.5, 0.9, 0.98, 0.995)
CLUSTERS = (6, 14, 30, 74, 200) if FULL else (6, 14, 200)
SIZES = ((1,), (6,), (6, 6, 12), (12,), (48,)) if FULL else ((6, 6, 12),)
UNLIKE: dict[str, list[int]] = {
    "two of 300 beside 28 of 6": [6] * 28 + [300] * 2,
    "two of 1,000 beside 100 of 6": [6] * 100 + [1000] * 2,
    "three of 100 beside 200 of 2": [2] * 200 + [100] * 3,
    "four of 100 beside 28 of 6": [6] * 28 + [100] * 4,
    "six of 100 beside 400 alone": [1] * 400 + [100] * 6,
    "twelve of 50 beside 400 alone": [1] * 400 + [50] * 12,
    "14 of 300 beside 300 of 3": [3] * 300 + [300] * 14,
    "ten of 1,000 beside 100 of 6": [6] * 100 + [1000] * 10,
    "eight of 1,000 beside 300 of 3": [3] * 300 + [1000] * 8,
    "five of 30 beside 20 of 6": [6] * 20 + [30] * 5,
    "1 to 20": list(range(1, 21)),
}
"""Answers of each cluster."""
TOGETHER = (0, 0.1, 0.3, 0.6, 0.9, 1) if FULL else (0, 0.3, 1)
"""Correlations of the answers of a cluster."""

Ends = tuple[np.ndarray, np.ndarray]


def settings() -> Iterator[tuple[float, int, tuple[int, ...], float]]:
    return itertools.product(RATES, CLUSTERS, SIZES, TOGETHER)


def draw(rate: float, clusters: int, sizes: tuple[int, ...], together: float, random: np.random.Generator) -> Ends:
    """(right, answers) [trial, cluster]; a cluster's own rate is beta-distributed, at 1 all or nothing."""
    return draw_clusters(rate, random.choice(sizes, clusters), together, random)


def draw_clusters(rate: float, sizes: Any, together: float, random: np.random.Generator) -> Ends:
    answers = np.broadcast_to(np.asarray(sizes), (TRIALS, len(sizes)))
    if together in (0, 1):
        own = np.full(answers.shape, rate) if not together else (random.random(answers.shape) < rate).astype(float)
    else:
        own = random.beta(rate * (1 / together - 1), (1 - rate) * (1 / together - 1), answers.shape)
    return random.binomial(answers, own).astype(float), answers.astype(float)


def covers(ends: Ends, truth: float) -> float:
    return float(((ends[0] <= truth) & (truth <= ends[1])).mean())


def design(right: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(share, number of answers over the design effect as measured, at least 1; 1 without any errors)."""
    total, clusters = answers.sum(1), right.shape[1]
    share = right.sum(1) / total
    spread = ((right - share[:, None] * answers) ** 2).sum(1) * clusters / (clusters - 1) / total
    alone = share * (1 - share)
    return share, total / np.where(alone > 0, spread / np.maximum(alone, 1e-12), 1).clip(1)


def clopper_pearson(share: np.ndarray, n: np.ndarray) -> Ends:
    good, bad = share * n, (1 - share) * n
    low = np.where(good > 0, betaincinv(np.maximum(good, 1e-9), bad + 1, 0.025), 0)
    return low, np.where(bad > 0, betaincinv(good + 1, np.maximum(bad, 1e-9), 0.975), 1)


def t_over_clusters(right: np.ndarray, answers: np.ndarray) -> Ends:
    share, _ = design(right, answers)
    clusters = right.shape[1]
    spread = ((right - share[:, None] * answers) ** 2).sum(1) * clusters / (clusters - 1)
    reach = stdtrit(clusters - 1, 0.975) * np.sqrt(spread) / answers.sum(1)
    return share - reach, share + reach


def wilson(right: np.ndarray, answers: np.ndarray) -> Ends:
    share, n = design(right, answers)
    z = 1.96
    middle, reach = share + z**2 / 2 / n, z * np.sqrt(share * (1 - share) / n + z**2 / 4 / n**2)
    return (middle - reach) / (1 + z**2 / n), (middle + reach) / (1 + z**2 / n)


def korn_graubard(right: np.ndarray, answers: np.ndarray) -> Ends:
    share, n = design(right, answers)
    return clopper_pearson(share, n * (stdtrit(answers.sum(1) - 1, 0.975) / stdtrit(right.shape[1] - 1, 0.975)) ** 2)


def whole_clusters(right: np.ndarray, answers: np.ndarray) -> Ends:
    """Every cluster counts as one answer: holds whatever the correlation is."""
    return clopper_pearson(design(right, answers)[0], np.full(len(right), float(right.shape[1])))


METHODS: dict[str, Callable[..., Ends]] = {
    "ours": share_interval,
    "t over clusters": t_over_clusters,
    "Wilson, design effect": wilson,
    "Korn and Graubard": korn_graubard,
    "Clopper and Pearson, whole clusters": whole_clusters,
}


@pytest.fixture(scope="module")
def simulated() -> dict[str, np.ndarray]:
    """method -> [setting, (coverage, mean width)]."""
    random = np.random.default_rng(0)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
    for setting in settings():
        drawn = draw(*setting, random)
        for name, method in METHODS.items():
            ends = method(*drawn)
            found[name].append((covers(ends, setting[0]), float((ends[1] - ends[0]).mean())))
    if FULL:
        for name, numbers in found.items():
            low, width = np.min(numbers, 0)[0], np.mean(numbers, 0)[1]
            print(f"{name}: lowest coverage {low:.3f}, mean width {width:.4f}")  # noqa: T201
    return {name: np.array(numbers) for name, numbers in found.items()}


def test_an_accuracy_is_covered_everywhere(simulated):
    worst = dict(sorted(zip(simulated["ours"][:, 0].tolist(), settings(), strict=True))[:3])
    assert min(worst) >= 0.93, worst


def test_no_textbook_interval_that_covers_everywhere_is_narrower(simulated):
    covering = [name for name, found in simulated.items() if name != "ours" and found[:, 0].min() >= 0.93]
    assert covering == ["Clopper and Pearson, whole clusters"], covering
    widths = {name: found[:, 1].mean() for name, found in simulated.items()}
    assert widths["ours"] < widths[covering[0]], widths


def changes_covered(
    rate: float, before: np.ndarray, answers: np.ndarray, random: np.random.Generator
) -> Iterator[tuple[float, float]]:
    """(chance that a right answer goes wrong, coverage of the change)."""
    for drop, gain in ((0.0, 0.0), (0.02, 0.2), (0.5, 0.2)):
        lose = random.beta(3 * drop, 3 * (1 - drop), before.shape) if drop else np.zeros_like(before)
        lost = random.binomial(before.astype(int), lose)
        gained = random.binomial((answers - before).astype(int), gain)
        ends = change_interval(before, before - lost + gained, answers)
        yield drop, covers(ends, gain * (1 - rate) - drop * rate)


def test_a_change_is_covered_everywhere():
    """Answers that were right go wrong with a chance of their cluster's own, some wrong ones come right."""
    random = np.random.default_rng(1)
    found = {}
    for rate, clusters, sizes, together in (each for each in settings() if FULL or each[0] in (0.9, 0.995)):
        before, answers = draw(rate, clusters, sizes, together, random)
        for drop, covered in changes_covered(rate, before, answers, random):
            found[rate, clusters, sizes, together, drop] = covered
    worst = min(found, key=lambda setting: found[setting])
    if FULL:
        print(f"changes: lowest coverage {found[worst]:.3f} at {worst}")  # noqa: T201
    assert found[worst] >= 0.93, worst


def test_all_right_is_not_certain():
    """84 answers in 14 clusters, all right: between 14 answers that count and 84."""
    low, high = share_interval(np.full(14, 6.0), np.full(14, 6.0))
    assert high == 1
    assert 0.025 ** (1 / 14) < low < 0.025 ** (1 / 84)
    assert share_interval(np.zeros(14), np.full(14, 6.0))[0] == 0
    change = change_interval(np.full(14, 6.0), np.full(14, 6.0), np.full(14, 6.0))
    assert change[0] == -change[1] == pytest.approx(low - 1)


def test_answers_alone_in_their_cluster_are_clopper_and_pearsons():
    right = np.arange(50) < 40
    assert share_interval(right, 1.0)[0] == pytest.approx(betaincinv(40, 11, 0.025))
    assert share_interval(right, 1.0)[1] == pytest.approx(betaincinv(41, 10, 0.975))


def test_one_cluster_has_no_interval():
    assert np.isnan(share_interval([5.0], [6.0])).all()
    assert np.isnan(change_interval([5.0], [3.0], [6.0])).all()


@pytest.mark.parametrize("sizes", UNLIKE)
def test_clusters_of_unlike_sizes_are_covered(sizes):
    """Where each is right or wrong as a whole, nearly all may hang on two of them."""
    random = np.random.default_rng(2)
    found = {}
    for rate, together in itertools.product((0.2, 0.5, 0.8, 0.95, 0.99) if FULL else (0.5, 0.95), TOGETHER):
        before, answers = draw_clusters(rate, UNLIKE[sizes], together, random)
        found[rate, together] = covers(share_interval(before, answers), rate)
        for drop, covered in changes_covered(rate, before, answers, random):
            found[rate, together, drop] = covered
    worst = min(found, key=lambda setting: found[setting])
    if FULL:
        print(f"{sizes}: lowest coverage {found[worst]:.3f} at {worst}")  # noqa: T201
    assert found[worst] >= 0.93, worst


def test_only_unequal_clusters_count_as_fewer():
    """Ten of 6 answers are bounded as ten; one of 60 beside them leaves little that is known."""
    right = np.array([6.0] * 8 + [0.0] * 2)
    alike = np.subtract(*share_interval(right, np.full(10, 6.0))[::-1])
    beside = np.subtract(*share_interval(np.append(right, 48.0), np.append(np.full(10, 6.0), 60.0))[::-1])
    assert alike < 0.55 < 0.65 < beside < 1
    same = change_interval(right, right, np.full(10, 6.0))
    assert same[0] < 0 < same[1]
