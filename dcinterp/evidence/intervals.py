"""Numbers as pages write them: means with their intervals over seeds, differences between arms, shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import SupportsFloat

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.analysis.training.compare_arms import ArmComparison, is_share
from dcinterp.mechanism.statistics import bootstrap_interval, without_width
from dcinterp.support.errors import UserError
from dcinterp.train.control.experiment import Experiment

ROUNDING = 1e-12
"""Below it a number is zero, but for the last bits."""
FEW = 5
"""Seeds below which a page lists what each has."""


def interval_text(
    value: SupportsFloat, low: SupportsFloat, high: SupportsFloat, sign: str = "", *, decimals: int = 3
) -> str:
    """A number with its interval in brackets; `sign` is "+" to show plus signs.

    It stands alone where the interval is NaN, and where all values were the same. More decimals than `decimals` stand
    where these would not tell on which side of zero an end is, or would put the number outside of its interval.
    """
    middle, first, last = (float(each) for each in (value, low, high))
    if without_width(first, last):
        return f"{_digits(middle, sign, decimals)} (all the same, so no interval)"
    if math.isnan(first):
        return f"{middle:{sign}.{decimals}f}"
    # A mean of 0.000 would not lie between 1e-5 and 3e-5.
    tiny = all(end and not round(end, decimals) for end in (first, last))
    inside = float(_digits(first, sign, decimals)) <= round(middle, decimals) <= float(_digits(last, sign, decimals))
    tiny |= not round(middle, decimals) and not inside and first <= middle <= last
    shown = _tiny(middle, sign) if tiny else f"{middle:{sign}.{decimals}f}"
    return f"{shown} {brackets(first, last, sign, decimals=decimals)}"


def brackets(low: float, high: float, sign: str = "", *, decimals: int = 3) -> str:
    """The ends of an interval, in brackets."""
    return f"[{_digits(low, sign, decimals)}, {_digits(high, sign, decimals)}]"


def _digits(number: float, sign: str, decimals: int) -> str:
    """So many decimals, or more for what would round to zero, and not tell on which side of it it is."""
    if abs(number) < ROUNDING:
        return f"{0.0:{sign}.{decimals}f}"
    return f"{number:{sign}.{decimals}f}" if round(number, decimals) else _tiny(number, sign)


def _tiny(number: float, sign: str) -> str:
    """One digit, without an exponent where four zeros will do."""
    if not 1e-5 <= abs(number) < 1:
        return f"{number:{sign}.1g}"
    rounded = float(f"{number:.1g}")
    return f"{rounded:{sign}.{-math.floor(math.log10(abs(rounded)) + 1e-9)}f}"


def one_by_one(*ways: Sequence[float], form: str) -> str:
    """What each seed has, in brackets, where a page gives it: of two seeds or more, and fewer than `FEW`."""
    said = " and ".join(", ".join(f"{each:{form}}" for each in way) for way in ways)
    return f" (one by one {said})" if 1 < len(ways[0]) < FEW else ""


def mean_text(values: Float[Tensor, " seed"], bounds: tuple[float, float] | None = (-1.0, 1.0)) -> str:
    """The mean of differences with its 95 % interval.

    Args:
        values: of each seed; or of whatever the interval is over.
        bounds: the least and the largest difference that there can be; None where there are none.
    """
    return interval_text(values.mean(), *bootstrap_interval(values, bounds=bounds), sign="+")


def differences(
    experiment: Experiment, values: Mapping[str, pd.DataFrame], bounds: tuple[float, float] | None = (-1.0, 1.0)
) -> dict[str, str]:
    """{hypothesis: its difference, with the 95 % interval over seeds}, of other values than those in the table.

    Args:
        experiment: whose hypotheses are asked.
        values: [seed, arm] of the measures, or their changes; hypotheses about others are left out.
        bounds: the least and the largest difference that there can be of shares; other measures have none.
    """
    found = {}
    for each in experiment.hypotheses:
        measure = each.measure or next(iter(experiment.measures))
        if measure in values:
            own = bounds if is_share(measure) else None
            found[each.name] = share_difference(values[measure], each.arms, each.baselines, own)
    return found


def share_difference(
    values: pd.DataFrame,
    arms: Sequence[str],
    baselines: Sequence[str],
    bounds: tuple[float, float] | None = (-1.0, 1.0),
) -> str:
    """The mean of some arms minus that of others, with the 95 % interval over seeds.

    Args:
        values: [seed, arm], shares; or changes of shares, with their bounds.
        arms, baselines: columns.
        bounds: the least and the largest difference that there can be; None where there are none.

    Raises:
        UserError: a seed lacks a run of one of these arms.
    """
    lacks = values[[*arms, *baselines]].isna().any(axis=1)
    if lacks.any():
        raise UserError(
            f"Seeds {values.index[lacks].tolist()} lack a run of one of {', '.join((*arms, *baselines))}; run the "
            "experiment to its end first."
        )
    over, under = (values[list(side)].mean(axis=1) for side in (arms, baselines))
    return mean_text(torch.tensor((over - under).to_numpy()), bounds)


def difference_text(found: ArmComparison, arm: str) -> str:
    """How far an arm is from the baseline, with its interval."""
    at = found.arms.index(arm)
    return interval_text(found.difference[at], found.difference_low[at], found.difference_high[at], sign="+")


def mean_and_range(shares: pd.Series) -> str:
    """The mean of shares over models [least, largest]."""
    mean, least, most = map(two_decimals, (shares.mean(), shares.min(), shares.max()))
    return f"{mean} [{least}, {most}]"


def two_decimals(value: float, sign: str = "") -> str:
    """A share with two decimals, with its sign where `sign` is "+"; never -0.00."""
    return f"{round(value, 2) + 0.0:{sign}.2f}"
