r"""Intervals of accuracies whose answers come in clusters, and of changes of accuracy on the same answers.

    low, high = share_interval(right, answers)              # right and answers of every cluster
    low, high = change_interval(before, after, answers)     # after minus before, cluster by cluster

The answers of a cluster (rows that share their facts, pairs that share their value) repeat each other, so that `n` of
them are worth n / d independent ones, with the design effect d = 1 + (b - 1) rho for clusters of b answers that
correlate by rho. With that number, k/n is bounded as Clopper and Pearson 1934 do, and the number is made smaller as t
is wider than the normal for so few clusters (Korn and Graubard 1998).

A model that is nearly always right shows too few errors to measure rho: taken as measured, one wrong answer would say
that errors never come together. So rho is averaged with PRIOR clusters that correlate by CORRELATION: it counts as
measured once several clusters have errors, and an accuracy of exactly 100 % still has a lower bound.

Clusters of unequal size count as fewer equal ones. For how well rho is known they count by their pairs of answers,
b (b - 1), in shares of the largest: where the large ones happen to be right, the small ones say little of them. For
Student's t they count as (sum w)^2 / sum w^2 (Kish 1965) with w = b^2, as the variance of a total of answers that go
together. So two clusters of 300 beside 28 of 6 are little more than two. With w = b, each cluster is one answer: they
are worth no less, and there is no rho in it that could be wrong.

What they reach is simulated in tests/unit/tasks/test_intervals.py: at least 93 % where 95 % is asked, at accuracies of
50 to 99.5 %, correlations of 0 to 1, and 6 to 200 clusters of like size (6 and 12 answers), or the ones of unlike
sizes (1 to 1,000) that stand there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

PRIOR, CORRELATION = 2.0, 0.75
"""What rho is averaged with. Clusters that are right as a whole or wrong as a whole, and all right, are bounded at
1 - 0.025^0.75, which is 94 %."""
LEAST_FREEDOM = 0.5
"""Of Student's t, where one cluster has nearly all answers: below it t is so wide that nothing is known."""


def share_interval(right: Any, answers: Any, *, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """The interval of sum(right) / sum(answers).

    Args:
        right: [..., cluster], how many answers of each cluster are right.
        answers: [cluster] or [..., cluster], how many it has, at least one.
        level: the chance that the interval should cover.

    Returns:
        (low, high) [...], within 0 and 1; NaN with fewer than two clusters, which say nothing about each other.
    """
    import numpy as np
    from scipy.special import betaincinv

    k, n = np.broadcast_arrays(np.asarray(right, float), np.asarray(answers, float))
    share = k.sum(-1) / n.sum(-1)
    if k.shape[-1] < 2:
        return np.full_like(share, np.nan), np.full_like(share, np.nan)
    worth, tail = _worth(k, n, level), (1 - level) / 2
    good, bad = share * worth, (1 - share) * worth
    with np.errstate(invalid="ignore", divide="ignore"):
        low = np.where(good > 0, betaincinv(np.maximum(good, 1e-9), bad + 1, tail), 0.0)
        high = np.where(bad > 0, betaincinv(good + 1, np.maximum(bad, 1e-9), 1 - tail), 1.0)
    return low, high


def change_interval(before: Any, after: Any, answers: Any, *, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """The interval of sum(after) / sum(answers) - sum(before) / sum(answers), both of the same answers.

    Newcombe's (1998) for paired shares: the two intervals of `share_interval`, taken together by the correlation of the
    two over clusters, which shrinks to zero where few clusters have errors.

    Args:
        before, after: [..., cluster], how many answers of each cluster are right.
        answers: [cluster], how many it has.
        level: the chance that the interval should cover.

    Returns:
        (low, high) [...], within -1 and 1; NaN with fewer than two clusters.
    """
    import numpy as np

    first, second, n = np.broadcast_arrays(*(np.asarray(each, float) for each in (before, after, answers)))
    shares = [each.sum(-1) / n.sum(-1) for each in (first, second)]
    change = shares[1] - shares[0]
    apart = [each - share[..., None] * n for each, share in zip((first, second), shares, strict=True)]
    size = np.sqrt((apart[0] ** 2).sum(-1) * (apart[1] ** 2).sum(-1))
    known = _as_equal(np.where((first < n) | (second < n), n**2, 0))
    together = (apart[0] * apart[1]).sum(-1) / np.maximum(size, 1e-12) * known / (known + PRIOR)
    (low1, high1), (low2, high2) = (share_interval(each, n, level=level) for each in (first, second))

    def reach(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.sqrt(np.maximum(one**2 - 2 * together * one * other + other**2, 0))

    low = change - reach(shares[1] - low2, high1 - shares[0])
    high = change + reach(high2 - shares[1], shares[0] - low1)
    return np.clip(low, -1, 1), np.clip(high, -1, 1)


def _worth(k: np.ndarray, n: np.ndarray, level: float) -> np.ndarray:
    """How many independent answers those of the clusters are worth, [...]."""
    import numpy as np
    from scipy.special import stdtrit

    clusters, total = k.shape[-1], n.sum(-1)
    share = k.sum(-1) / total
    size = (n**2).sum(-1) / total  # the mean over answers of how many their cluster has
    variance = ((k - share[..., None] * n) ** 2).sum(-1) * clusters / (clusters - 1) / total
    alone = share * (1 - share)
    effect = np.where(alone > 0, variance / np.maximum(alone, 1e-12), 1.0)
    rho = np.clip((effect - 1) / np.maximum(size - 1, 1e-9), 0, 1)
    # Clusters that show how errors (or hits) come together.
    pairs = n * (n - 1)
    most = np.maximum(pairs.max(-1), 1e-12)
    known = np.minimum(*(np.where(shows, pairs, 0).sum(-1) / most for shows in (k < n, k > 0)))
    rho = (known * rho + PRIOR * CORRELATION) / (known + PRIOR)
    tail = 1 - (1 - level) / 2
    freedom = np.maximum(_as_equal(n**2) - 1, LEAST_FREEDOM)
    wider = stdtrit(np.maximum(total - 1, 1), tail) / stdtrit(freedom, tail)
    return np.maximum(total / (1 + (size - 1) * rho) * np.minimum(wider, 1) ** 2, total / size)


def _as_equal(weights: np.ndarray) -> np.ndarray:
    """As how many clusters of one weight those of weights [..., cluster] count; 0 where all are 0, [...]."""
    import numpy as np

    return weights.sum(-1) ** 2 / np.maximum((weights**2).sum(-1), 1e-12)
