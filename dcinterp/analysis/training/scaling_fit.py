r"""How much compute a family saves at equal loss, from runs at several sizes.

    log L = log a - b log C        a line in logarithms for each family, by least squares
    multiplier(C) = C' / C         where the base family needs C' to reach the loss that the other reaches with C

Source: section 4.1 of the DCMHA paper (its figure of loss against compute; "1.7x-2.0x"), after Kaplan et al. 2020.

It does not show an optimum: the points are the sizes and lengths that somebody trained. It does not extrapolate: a
multiplier is reported only at losses that both families reached. The intervals take the points to scatter normally
around their line; a curved truth (an irreducible loss) shows as residuals of one sign.

Identity that the tests assert: points made from two power laws give back their exponents and their multiplier.

    fit = dcinterp.scaling_fit("runs/scaling/results.csv", base="transformer++", other="dcformer++")
    fit.multiplier, fit.multiplier_low, fit.multiplier_high      # per loss in fit.loss
    fit.sentence()
    dcinterp.figures.plot(fit)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.ranges import Count

LOSSES = ("validation_loss", "loss")
COLUMNS = ("family", "flops")
GRID = 9
LARGEST_LOG = 100.0
"""Of a loss: far beyond what any run has, and far from what a number can hold."""


@dataclass(frozen=True)
class ScalingFit(Result):
    """Fits of two families and the compute multiplier at `loss` [at].

    families [base, other]; exponent and coefficient per family with a 95 % interval (`low`, `high`), in log space:
    log L = log_coefficient - exponent log C. multiplier [at] with its interval. Points are in `points`, as
    (family, FLOPs, loss).
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "loss": ("at",),
        "multiplier": ("at",),
        "multiplier_low": ("at",),
        "multiplier_high": ("at",),
        "base_flops": ("at",),
        "other_flops": ("at",),
    }

    families: tuple[str, str]
    points: tuple[tuple[str, float, float], ...]
    exponent: tuple[float, float]
    exponent_low: tuple[float, float]
    exponent_high: tuple[float, float]
    log_coefficient: tuple[float, float]
    largest_residual: tuple[float, float]
    loss: Float[Tensor, " at"]
    base_flops: Float[Tensor, " at"]
    other_flops: Float[Tensor, " at"]
    multiplier: Float[Tensor, " at"]
    multiplier_low: Float[Tensor, " at"]
    multiplier_high: Float[Tensor, " at"]

    def __post_init__(self) -> None:
        # A file may hold lines that no runs have: what is drawn takes their exponential.
        for number, family in enumerate(self.families):
            points = [(flops, loss) for name, flops, loss in self.points if name == family]
            _require_runs(family, points)
            if not all(abs(self._log_loss(number, flops)) < LARGEST_LOG for flops, _ in points):
                raise UserError(f"The line of {family} is at no loss that a run could have.")

    def line(self, number: int) -> tuple[list[float], list[float]]:
        """(FLOPs, loss) at both ends of the fitted line of a family: 0 is the base, 1 the other."""
        flops = [flops for name, flops, _ in self.points if name == self.families[number]]
        ends = [min(flops), max(flops)]
        return ends, [math.exp(self._log_loss(number, end)) for end in ends]

    def _log_loss(self, number: int, flops: float) -> float:
        return self.log_coefficient[number] - self.exponent[number] * math.log(flops)

    def labels(self, axis: str) -> list[Any] | None:
        return [f"loss {float(value):.4g}" for value in self.loss] if axis == "at" else None

    def sentence(self) -> str:
        """The result in words, at the lowest loss that both families reached."""
        base, other = self.families
        low, high = float(self.multiplier_low[0]), float(self.multiplier_high[0])
        remark = "" if low > 1 or high < 1 else "; the interval includes 1, so no difference is shown"
        return (
            f"At a loss of {float(self.loss[0]):.4g}, {other} reaches what {base} reaches with "
            f"{float(self.multiplier[0]):.2f} times its compute (95 % interval {low:.2f} to {high:.2f}){remark}."
        )

    def warnings(self) -> list[str]:
        counts = [sum(point[0] == family for point in self.points) for family in self.families]
        few = min(counts)
        return (
            [f"The intervals rest on {few} runs of a family; with more sizes they are more reliable."]
            if few < 5
            else []
        )


@analysis(
    title="Scaling fit",
    question="How does loss fall with compute, and what does composition save?",
    guide="training.md",
    example={"runs": "runs/scaling/results.csv"},
)
def scaling_fit(
    runs: str | list[tuple[str, float, float]],
    *,
    base: str = "transformer++",
    other: str = "dcformer++",
    loss: str | None = None,
    resamples: Count = 2000,
    seed: int = 0,
) -> ScalingFit:
    """Loss against compute for two families, and the compute multiplier at equal loss.

    Args:
        runs: the results.csv of a sweep (columns family, flops and a loss), or points (family, FLOPs, loss).
        base, other: the families to compare.
        loss: column of the loss; validation_loss where every run has it, else loss.
        resamples: lines drawn for the intervals.
        seed: seed of the draws.

    Raises:
        UserError: the points do not support a fit; the sentence says why.
    """
    points = _points(runs, loss)
    known = {family for family, _, _ in points}
    for family in (base, other):
        if family not in known:
            raise UserError(f"No finished run is of the family {family!r}; {nearest(family, known)}")
    if base == other:
        raise UserError(f"The two families are both {base!r}; name two.")
    fits = [_checked(family, points) for family in (base, other)]
    grid = _common_losses(fits, (base, other))
    flops = [np.exp(_inverse(fit.line, grid)) for fit in fits]
    random = np.random.default_rng(seed)
    lines = [fit.draw(resamples, random) for fit in fits]
    exponents = [-drawn[:, 0] for drawn in lines]
    with np.errstate(all="ignore"):
        ratios = np.exp(_inverse(lines[0], grid) - _inverse(lines[1], grid))
    # A drawn line that does not fall has no multiplier; it counts as both extremes.
    falling = (lines[0][:, 0] < 0) & (lines[1][:, 0] < 0)
    low = np.quantile(np.where(falling[:, None], ratios, 0.0), 0.025, axis=0)
    high = np.quantile(np.where(falling[:, None], ratios, np.inf), 0.975, axis=0)
    return ScalingFit(
        families=(base, other),
        points=tuple(point for point in points if point[0] in (base, other)),
        exponent=_pair(-fit.line[0] for fit in fits),
        exponent_low=_pair(np.quantile(drawn, 0.025) for drawn in exponents),
        exponent_high=_pair(np.quantile(drawn, 0.975) for drawn in exponents),
        log_coefficient=_pair(fit.line[1] for fit in fits),
        largest_residual=_pair(np.abs(fit.residuals).max() for fit in fits),
        loss=torch.from_numpy(np.exp(grid)),
        base_flops=torch.from_numpy(flops[0]),
        other_flops=torch.from_numpy(flops[1]),
        multiplier=torch.from_numpy(flops[0] / flops[1]),
        multiplier_low=torch.from_numpy(low),
        multiplier_high=torch.from_numpy(high),
    )


@dataclass(frozen=True)
class _Fit:
    """log L on log C for one family."""

    x: np.ndarray
    y: np.ndarray
    line: np.ndarray

    @property
    def residuals(self) -> np.ndarray:
        return self.y - (self.line[0] * self.x + self.line[1])

    def draw(self, resamples: int, random: np.random.Generator) -> np.ndarray:
        """[resample, (slope, intercept)] of lines as far from the fit as it may be from the truth.

        Slope and level have Student's t distribution around the truth, with as many degrees of freedom as there are
        points beyond two: resampled residuals of 3 to 5 points do not reach as far.
        """
        count, centre = len(self.x), self.x.mean()
        spread = np.sqrt((self.residuals**2).sum() / random.chisquare(count - 2, resamples))
        slope = self.line[0] + spread * random.standard_normal(resamples) / np.sqrt(((self.x - centre) ** 2).sum())
        middle = self.y.mean() + spread * random.standard_normal(resamples) / math.sqrt(count)
        return np.stack([slope, middle - slope * centre], axis=1)


def _points(runs: str | list[tuple[str, float, float]], loss: str | None) -> list[tuple[str, float, float]]:
    if not isinstance(runs, str | Path):
        return [(str(family), float(flops), float(value)) for family, flops, value in runs]
    path = Path(runs)
    if not path.is_file():
        raise UserError(f"There is no table at {path}; give the results.csv of a sweep.")
    try:
        table = pd.read_csv(path)
    except ValueError as error:  # no text, no columns, or lines that do not fit together
        raise UserError(
            f"{path} is not a valid table ({error}); give the results.csv that `dcinterp sweep` wrote."
        ) from error
    for column in COLUMNS:
        if column not in table:
            raise UserError(f"{path} has no column {column!r}; give the results.csv that `dcinterp sweep` wrote.")
    if "status" in table:
        table = table[table["status"] == "done"]
    usable = [c for c in LOSSES if c in table and table[c].notna().all()]
    column = loss or (usable[0] if usable else "loss")
    if column not in table:
        raise UserError(f"{path} has no column {column!r}; {nearest(column, table.columns)}")
    table = table.dropna(subset=["flops", column])
    return list(table[["family", "flops", column]].itertuples(index=False, name=None))


def _require_runs(family: str, chosen: list[tuple[float, float]]) -> None:
    if not chosen:
        raise UserError(f"There is no run of {family}.")
    if any(not (flops > 0 and loss > 0 and math.isfinite(flops * loss)) for flops, loss in chosen):
        raise UserError(f"A run of {family} has no positive, finite compute and loss; leave it out.")


def _checked(family: str, points: list[tuple[str, float, float]]) -> _Fit:
    """The line of one family; a UserError says why there is none."""
    chosen = [(flops, loss) for name, flops, loss in points if name == family]
    _require_runs(family, chosen)
    sizes = {flops for flops, _ in chosen}
    if len(sizes) < 3:
        raise UserError(
            f"{family} has runs at {len(sizes)} amounts of compute; a line with an interval needs at least 3 of them."
        )
    if max(sizes) < 2 * min(sizes):
        raise UserError(
            f"The runs of {family} differ in compute by a factor of {max(sizes) / min(sizes):.2f} only; a slope needs "
            "at least 2."
        )
    x, y = (np.log([pair[axis] for pair in chosen]) for axis in (0, 1))
    line = np.polyfit(x, y, 1)
    if line[0] >= 0:
        raise UserError(f"The loss of {family} does not fall with compute in these runs, so there is nothing to fit.")
    return _Fit(x, y, line)


def _common_losses(fits: list[_Fit], families: tuple[str, str]) -> np.ndarray:
    """Logarithms of losses, lowest first, that both families reached."""
    lowest, highest = max(fit.y.min() for fit in fits), min(fit.y.max() for fit in fits)
    if lowest >= highest:
        raise UserError(
            f"{families[0]} and {families[1]} reached no loss in common ({math.exp(lowest):.4g} is above "
            f"{math.exp(highest):.4g}), so a multiplier would be extrapolated; train them at overlapping sizes."
        )
    return np.linspace(lowest, highest, GRID)


def _inverse(line: np.ndarray, log_loss: np.ndarray) -> np.ndarray:
    """log C at which a line, or each of several, reaches a loss."""
    slope, intercept = line[..., 0:1], line[..., 1:2]
    return (log_loss - intercept) / slope


def _pair(values: Any) -> tuple[float, float]:
    first, second = (float(value) for value in values)
    return first, second
