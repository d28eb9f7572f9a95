r"""The statistics that score tables carry: how sure a mean is, and whether a score does better than chance.

Pure functions of tensors (or anything that becomes one); no model, no hidden randomness: every draw has a seed.
Intervals of accuracies are in synthetic_tasks.intervals.

    low, high = bootstrap_interval(scores)                  # scores [example, layer, head]: intervals [layer, head]
    low, high = ratio_interval(nats, tokens)                # of a loss a token, over files of unequal length
    auroc(predicted, is_part_of_the_circuit)                # 1: every positive above every negative; 0.5: chance
    top_precision(predicted, is_part_of_the_circuit)        # share of true ones among as many of the highest
    sign_test(predicted, measured)                          # do attribution and ablation agree in sign?
    calibration_error(predicted, measured)                  # by how much do they differ, as a share of the effects?
    shuffled_control(auroc, predicted, labels)              # the same statistic when the labels mean nothing
    random_control(effects, chosen=[3, 17])                 # the chosen heads against as many random ones
    exchanged_extremes(scores, generator)                   # the best head's mean when no head is the same head twice
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dcinterp.support.errors import UserError
from dcinterp.support.ranges import Count, require_in_range

REACH = 2.5
"""How many times as far as Student's t an interval reaches at most."""


@dataclass(frozen=True)
class SignAgreement:
    """Of `n` pairs with two signs, `agree` have the same one; `p_value` is the chance of at least as many by coin."""

    n: int
    agree: int
    p_value: float

    @property
    def share(self) -> float:
        """Share of the pairs that agree; NaN without any pair."""
        return self.agree / self.n if self.n else math.nan


@dataclass(frozen=True)
class Control:
    """A statistic beside the same statistic of data that mean nothing.

    `value` is the real one; `mean`, `low`, `high` (95 %) describe the meaningless ones; `p_value` is the share of
    those, the real one included, that reach `value`.
    """

    value: float
    mean: float
    low: float
    high: float
    p_value: float


def bootstrap_interval(
    values: Any,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    bounds: tuple[float, float] | None = None,
    groups: Sequence[Hashable] | None = None,
) -> tuple[Float[Tensor, "*axes"], Float[Tensor, "*axes"]]:
    """The interval of the mean over examples: Student's t, and where the tail is long the studentised bootstrap.

    Student's t misses a skewed mean on one side. There the bootstrap of (mean - m) / standard error says how far to
    reach (Efron and Tibshirani 1993, section 12.5), where that is further; REACH times as far at most, since with three
    or four examples the bootstrap reaches to infinity.

    Where 95 % is asked it covers, from 3 to 20 examples (simulated in tests/unit/mechanism/test_intervals.py): normal
    data 95 to 97 %, exponential 93 to 95 %, lognormal of sigma 1 (skewness 6) 89 to 92 %. No interval of a handful of
    so skewed numbers does better without being several times as wide: t covers 82 to 86 % of these, percentiles 60 to
    85 %.

    Args:
        values: [n, ...], one entry an example; examples are drawn whole, so that what belongs together stays together.
        level: probability that the interval should cover.
        resamples: how often n examples are drawn with replacement.
        seed: of the draws.
        bounds: that the values cannot leave, such as (0, 1) of shares. The interval ends there; where all values lie at
            the same bound it is that of Clopper and Pearson, as for so many answers that are all right.
        groups: [n], the same for examples that repeat each other, such as those with the same facts (see
            dcinterp.mechanism.dataset.repeats): they are drawn together, and their number is that of the examples. Of
            groups of unequal size it is that of `ratio_interval`.

    Returns:
        (low, high), each of the shape [...]: NaN with one example (or group), which does not say how far it is from
        others; the value itself where all examples agree and nothing bounds them.

    Raises:
        UserError: there are no values, or `level` or `resamples` make no interval.
    """
    x = _float(values)
    if not x.dim() or not len(x):
        raise UserError("There are no values to take an interval of; give at least one example.")
    _require_level(level, resamples)
    units = _examples(x) if groups is None else _groups(x, groups)
    low, high = _interval(units, level, resamples, seed)
    return (low, high) if bounds is None else _bounded(units.values, low, high, bounds, level, units.sizes)


def ratio_interval(
    parts: Any, sizes: Any, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[Float[Tensor, "*axes"], Float[Tensor, "*axes"]]:
    r"""The interval of a mean over units of unequal size, sum(parts) / sum(sizes): of a loss a token over files.

    A large unit draws the ratio to itself, so that it seems to lie near it. So unit u counts as far from the ratio as
    that moves when u is left out (the jackknife), and Student's t has the degrees of freedom of as many equal units,

        sum(sizes)^2 / sum(sizes^2) - 1,    at least 1.

    Units of one size have the interval of `bootstrap_interval`. Where 95 % is asked it covers 93 % or more of normal
    data, and nearly all where one unit outweighs the rest (simulated in tests/unit/mechanism/test_intervals.py).

    Args:
        parts: [unit, ...], what each unit adds to the numerator.
        sizes: [unit], what it adds to the denominator; units of size 0 are left out.
        level, resamples, seed: as of `bootstrap_interval`.

    Returns:
        (low, high), each of the shape [...]: NaN with one unit.

    Raises:
        UserError: the two are not as many, a size is below 0, or all are 0; or `level` or `resamples` make no interval.
    """
    x, counts = _float(parts), _float(sizes)
    if counts.shape != x.shape[:1] or not bool((counts >= 0).all()) or not bool(counts.any()):
        raise UserError("Parts and sizes of units do not fit; give as many sizes as parts, none below 0, not all 0.")
    _require_level(level, resamples)
    return _interval(_units(x[counts > 0], counts[counts > 0]), level, resamples, seed)


@dataclass(frozen=True)
class _Units:
    """Numbers whose scatter about `mean` says how sure it is, as that of so many equal ones.

    freedom: degrees of freedom of Student's t. sizes: of the units, where they are groups.
    """

    values: Float[Tensor, "unit ..."]
    mean: Float[Tensor, "*axes"]
    freedom: float
    sizes: Float[Tensor, " unit"] | None = None


def _examples(x: Float[Tensor, "example ..."]) -> _Units:
    return _Units(x, x.mean(0), len(x) - 1)


def _units(parts: Float[Tensor, "unit ..."], sizes: Float[Tensor, " unit"]) -> _Units:
    """One value for each unit; see `ratio_interval`."""
    n, ratio = len(sizes), parts.sum(0) / sizes.sum()
    along = (slice(None), *(None,) * (parts.dim() - 1))
    share = sizes / sizes.sum()
    off = (parts - sizes[along] * ratio) / sizes.sum()
    values = ratio + (n - 1) * off / (1 - share[along]) if n > 1 else ratio[None]
    return _Units(values, ratio, max(1.0, 1 / float((share**2).sum()) - 1), sizes)


def _groups(x: Float[Tensor, "example ..."], groups: Sequence[Hashable]) -> _Units:
    if len(groups) != len(x):
        raise UserError(f"There are {len(groups)} groups of {len(x)} examples; give every example its group.")
    places = torch.tensor(numbered(groups))
    sizes = places.bincount()
    sums = torch.zeros(len(sizes), *x.shape[1:], dtype=x.dtype).index_add_(0, places, x)
    return _units(sums, sizes.double())


def numbered(groups: Sequence[Hashable]) -> tuple[int, ...]:
    """The number of each one's group, counted as they come."""
    number: dict[Hashable, int] = {}
    return tuple(number.setdefault(group, len(number)) for group in groups)


def count_distinct(groups: Sequence[Hashable] | None) -> int | None:
    """How many groups there are; None where they are not known."""
    return None if groups is None else len(set(groups))


def _interval(units: _Units, level: float, resamples: int, seed: int) -> tuple[Tensor, Tensor]:
    n, shape = len(units.values), units.mean.shape
    if n == 1:
        return torch.full_like(units.mean, math.nan), torch.full_like(units.mean, math.nan)
    drawn = torch.randint(n, (resamples, n), generator=torch.Generator().manual_seed(seed))
    # How often each example was drawn, so that all resampled means are one matrix product.
    counts = torch.zeros(resamples, n, dtype=torch.float64)
    counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
    values, mean = units.values.reshape(n, -1).split(4096, dim=1), units.mean.reshape(-1).split(4096)
    parts = [_mean_interval(*part, counts, units.freedom, level) for part in zip(values, mean, strict=True)]
    low, high = (torch.cat(ends).reshape(shape) for ends in zip(*parts, strict=True))
    return low, high


def _require_level(level: float, resamples: int) -> None:
    if not 0 < level < 1 or resamples < 1:
        raise UserError(f"No interval at level {level:g} from {resamples} resamples; use e.g. 0.95 and 1000.")


def without_width(low: float, high: float) -> bool:
    """Whether an interval is of values that were all the same, up to rounding: it says nothing of others."""
    return high - low < 1e-12


def _mean_interval(
    x: Float[Tensor, "n unit"],
    mean: Float[Tensor, " unit"],
    counts: Float[Tensor, "resample n"],
    freedom: float,
    level: float,
) -> tuple[Tensor, Tensor]:
    """(low, high) [unit] of the mean of each column."""
    from scipy.special import stdtrit

    n, tail = len(x), (1 - level) / 2
    t = float(stdtrit(freedom, 1 - tail))
    y = x - mean
    error = ((y**2).sum(0) / (n - 1) / n).sqrt()
    y = y - y.mean(0)  # which is zero but for units of unequal size
    means = (counts @ y) / n
    errors = ((counts @ y**2 / n - means**2).clamp(min=0) / (n - 1)).sqrt()
    # A resample of one example over and over has no error of its own: it is as far off as can be.
    off = torch.where(errors > 1e-6 * error, means / errors.clamp(min=1e-300), means.sign() * REACH * t)
    off = off.clamp(-REACH * t, REACH * t)
    above, below = (-_quantile(off, tail)).clamp(min=t), _quantile(off, 1 - tail).clamp(min=t)
    skew = (y**3).sum(0)
    # Of values that lie alike on both sides, as two do, rounding would choose one.
    skew = skew.where(skew.abs() > 1e-9 * (y**3).abs().sum(0), 0.0)
    plain = torch.full_like(mean, t)
    low = mean - error * torch.where(skew < 0, below, plain)
    return low, mean + error * torch.where(skew > 0, above, plain)


def _bounded(
    x: Float[Tensor, "n ..."],
    low: Tensor,
    high: Tensor,
    bounds: tuple[float, float],
    level: float,
    sizes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The interval within bounds, and one where all values lie at the same bound.

    sizes: of the groups that the values are means of; groups of unlike sizes count as fewer.
    """
    from synthetic_tasks.intervals import share_interval

    least, most = bounds
    share = ((x - least) / (most - least)).movedim(0, -1)
    answers = torch.ones(len(x), dtype=share.dtype) if sizes is None else sizes.to(share)
    ends = [torch.from_numpy(end) for end in share_interval((share * answers).numpy(), answers.numpy(), level=level)]
    alike = ((x == least).all(0)) | ((x == most).all(0))
    low, high = (
        torch.where(alike, least + (most - least) * end, own) for end, own in zip(ends, (low, high), strict=True)
    )
    return low.clamp(least, most), high.clamp(least, most)


def sign_test(predicted: Any, measured: Any) -> SignAgreement:
    """Whether two lists of numbers agree in sign more often than a coin would (exact, one-sided).

    Pairs in which either number is exactly zero have no two signs and are left out.

    Raises:
        UserError: the two have different shapes, or a number is NaN.
    """
    p, m = _pair(predicted, measured)
    if p.isnan().any() or m.isnan().any():
        raise UserError("Some numbers are NaN and have no sign; leave those entries out.")
    two_signs = (p != 0) & (m != 0)
    n = int(two_signs.sum())
    agree = int((p.sign() == m.sign())[two_signs].sum())
    # log C(n, k) - n log 2, summed in the log domain: n may be in the thousands.
    logs = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2) for k in range(agree, n + 1)
    ]
    return SignAgreement(n=n, agree=agree, p_value=min(1.0, math.fsum(map(math.exp, logs))))


def auroc(scores: Any, labels: Any) -> float:
    """The chance that a random positive scores above a random negative (area under the ROC curve); ties count half.

    Args:
        scores: any shape; larger should mean positive.
        labels: of that shape; true (or nonzero) for positives.

    Raises:
        UserError: the shapes differ, a score is NaN, or all labels are the same.
    """
    s, y = _pair(scores, labels)
    positive: Bool[Tensor, " n"] = y != 0
    ones = int(positive.sum())
    if ones in (0, len(y)):
        raise UserError("All labels are the same, so nothing can rank them; AUROC needs positives and negatives.")
    if s.isnan().any():
        raise UserError("Some scores are NaN and have no rank; leave those entries out.")
    _, place, counts = s.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0).double() - (counts - 1) / 2)[place]  # tied scores share the mean of their ranks
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * (len(y) - ones)))


def top_precision(scores: Any, labels: Any) -> float:
    """Share of positives among the k highest scores, where k is the number of positives; ties count what chance gives.

    Stricter than AUROC where positives are rare: ten false ones above a true one among thousands hardly move AUROC.

    Args:
        scores: any shape; larger should mean positive.
        labels: of that shape; true (or nonzero) for positives.

    Raises:
        UserError: the shapes differ, a score is NaN, or there are no positives.
    """
    s, y = _pair(scores, labels)
    positive = y != 0
    k = int(positive.sum())
    if k == 0:
        raise UserError("No label is positive, so there is nothing to find.")
    if s.isnan().any():
        raise UserError("Some scores are NaN and have no rank; leave those entries out.")
    last = s.sort(descending=True).values[k - 1]
    above, tied = s > last, s == last
    room = k - int(above.sum())
    return (int(positive[above].sum()) + room * float(positive[tied].double().mean())) / k


def calibration_error(predicted: Any, measured: Any) -> float:
    """sum |predicted - measured| / sum |measured|: 0 is exact, 1 is what predicting no effect at all scores.

    Raises:
        UserError: the shapes differ, an entry is NaN, or nothing was measured but zeros.
    """
    p, m = _pair(predicted, measured)
    if p.isnan().any() or m.isnan().any():
        raise UserError("Some effects are NaN and cannot be compared; leave those entries out.")
    size = float(m.abs().sum())
    if size == 0:
        raise UserError("Every measured effect is zero, so no error is a share of them; measure something that acts.")
    return float((p - m).abs().sum()) / size


def shuffled_control(
    statistic: Callable[[Tensor, Tensor], float],
    predicted: Any,
    measured: Any,
    *,
    shuffles: int = 1000,
    seed: int = 0,
) -> Control:
    """`statistic(predicted, measured)` beside its values when `measured` is put in random order.

    Args:
        statistic: such as `auroc`; larger must mean better.
        predicted: scores, any shape.
        measured: labels or effects, of that shape.
        shuffles: number of random orders.
        seed: of the orders.

    Raises:
        UserError: the shapes differ, or as `statistic` raises.
    """
    p, m = _pair(predicted, measured)
    require_in_range("shuffles", shuffles, Count)
    generator = torch.Generator().manual_seed(seed)
    drawn = [statistic(p, m[torch.randperm(len(m), generator=generator)]) for _ in range(shuffles)]
    return _control(float(statistic(p, m)), drawn)


def random_control(values: Any, chosen: Sequence[int], *, draws: int = 1000, seed: int = 0) -> Control:
    """The summed values of the chosen heads (or edges) beside those of as many random ones.

    Args:
        values: [n], or any shape that flattens to it.
        chosen: their indices in the flattened values.
        draws: how many random sets of the same size are drawn, each without repeats.
        seed: of the draws.

    Raises:
        UserError: nothing is chosen, or an index does not exist.
    """
    x = _float(values).flatten()
    picked = sorted(set(chosen))
    if not picked or picked[0] < 0 or picked[-1] >= len(x):
        raise UserError(f"Choose between 1 and {len(x)} of the {len(x)} values, by indices from 0 to {len(x) - 1}.")
    require_in_range("draws", draws, Count)
    generator = torch.Generator().manual_seed(seed)
    drawn = [float(x[torch.randperm(len(x), generator=generator)[: len(picked)]].sum()) for _ in range(draws)]
    return _control(float(x[picked].sum()), drawn)


def exchanged_extremes(
    scores: Float[Tensor, "example *group unit"],
    generator: torch.Generator,
    *,
    draws: int = 1000,
    repeats: Sequence[Hashable] | None = None,
) -> tuple[Float[Tensor, "*group"], Float[Tensor, "*group"]]:
    """What the best unit of a group must beat: the largest mean (in size, with its sign) when units mean nothing.

    In every draw and within every example the units of a group change places at random, so that none is the same unit
    twice; examples that repeat each other have the same order.

    Args:
        scores: of the units (heads, edges) of every group (a layer, say) in every example.
        generator: of the draws.
        draws: how many; a multiple of 50.
        repeats: of every example, the same for those that repeat each other; none do by default.

    Returns:
        (low, high): the middle 95 % of the extremes; zero lies inside, since a group whose scores lean to one side has
        extremes on that side only.

    Raises:
        UserError: `draws` is no multiple of 50.
    """
    if draws < 50 or draws % 50:
        raise UserError(f"draws is {draws}; give a multiple of 50.")
    drawn, place = [], list(numbered(range(len(scores)) if repeats is None else repeats))
    for _ in range(draws // 50):
        # 50 draws at a time: one by one takes long, all at once much memory in a large model.
        order = torch.rand(50, max(place) + 1, *scores.shape[1:], generator=generator).argsort(-1)[:, place]
        means = scores.expand(50, *scores.shape).gather(-1, order).mean(1)
        drawn.append(means.gather(-1, means.abs().argmax(-1, keepdim=True))[..., 0])
    extremes = torch.cat(drawn).double()
    return torch.quantile(extremes, 0.025, dim=0).clamp(max=0), torch.quantile(extremes, 0.975, dim=0).clamp(min=0)


def _control(value: float, drawn: list[float]) -> Control:
    others = torch.tensor(drawn, dtype=torch.float64)
    if math.isnan(value) or others.isnan().any():
        raise UserError("Some values are NaN and cannot be compared; leave those entries out.")
    # What ties but for the order of a sum must count as reached.
    same = 1e-9 * max(abs(value), float(others.abs().max()))
    reached = int((others >= value - same).sum())
    return Control(
        value=value,
        mean=float(others.mean()),
        low=float(_quantile(others[:, None], 0.025)),
        high=float(_quantile(others[:, None], 0.975)),
        p_value=(reached + 1) / (len(others) + 1),
    )


def _quantile(x: Tensor, at: float) -> Tensor:
    """The quantile over the first axis; torch's own refuses inputs of more than 16 million entries."""
    ordered = x.sort(0).values
    place = at * (len(x) - 1)
    below, above = math.floor(place), math.ceil(place)
    return ordered[below].lerp(ordered[above], place - below)


def _float(values: Any) -> Tensor:
    return torch.as_tensor(values).detach().cpu().double()


def _pair(first: Any, second: Any) -> tuple[Tensor, Tensor]:
    a, b = _float(first), _float(second)
    if a.shape != b.shape:
        raise UserError(f"The two lists have shapes {tuple(a.shape)} and {tuple(b.shape)}; they must be the same.")
    return a.flatten(), b.flatten()


def few_examples(n: int, low: Tensor | None = None, distinct: int | None = None) -> list[str]:
    """The warning for results over so few examples that their intervals are rough; empty for 20 and more.

    Args:
        n: the examples.
        low: ends of the intervals, where they are over clusters of examples: all NaN if there is one cluster.
        distinct: how many clusters there are; None for as many as examples.
    """
    if n > 1 and (distinct == 1 or (low is not None and low.numel() and bool(low.isnan().all()))):
        return [f"The {n} examples share their facts and count as one, so there are no intervals; give more examples."]
    if n == 1:
        return ["There is only one example, so there are no intervals: nothing says how far another would be from it."]
    if distinct is not None and 1 < distinct < min(n, 20):
        return [
            f"The {n} examples hold {distinct} sets of facts, each of which counts once, so the intervals are rough."
        ]
    return [f"There are only {n} examples, so the intervals are rough."] if n < 20 else []


class AgainstControl:
    """What means with an interval and a control have in common; `control` is "none" if there is none."""

    control: str
    low: Tensor
    high: Tensor
    control_low: Tensor
    control_high: Tensor

    @property
    def stands_out(self) -> Bool[Tensor, "*score"]:
        """Scores whose interval lies outside the control's, on one side; all False without a control."""
        beyond = (self.low > self.control_high) | (self.high < self.control_low)
        return beyond & (self.control != "none")
