r"""How much compute a family saves at equal loss, from runs at several sizes.

    log L = log a - b log C        a line in logarithms for each family, by least squares
    multiplier(C) = C' / C         where the base family needs C' to reach the loss that the other reaches with C

Source: section 4.1 of the DCMHA paper (its figure of loss against compute; "1.7x-2.0x"), after Kaplan et al. 2020.

It does not show an optimum: the points are the sizes and lengths that somebody trained. It does not extrapolate: a
multiplier is reported only at losses that both families reached. Over runs, the intervals take the points to scatter
normally around their line; a curved truth (an irreducible loss) shows as residuals of one sign. Over seeds there is a
line for every family and seed, a multiplier for every seed, and the interval is Student's t of its logarithm: what all
seeds share, such as the curve, is not in it.

Identity that the tests assert: points made from two power laws give back their exponents and their multiplier.

    fit = dcinterp.scaling_fit("runs/scaling/results.csv", base="transformer++", other="dcformer++")
    fit.multiplier, fit.multiplier_low, fit.multiplier_high      # per loss in fit.loss
    fit.sentence()
    dcinterp.figures.plot(fit)
    dcinterp.scaling_fit("experiments/scaling/results.csv", loss="bits_per_byte", over="seeds")
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.ranges import Count
from dcinterp.support.table_files import require_numbers
from dcinterp.support.text import beside
from dcinterp.train.control.experiment import FINAL
from dcinterp.train.control.sweep import read_results

LOSSES = ("validation_loss", "loss")
COLUMNS = ("family", "flops")
SEED = "recipe.seed"
IDENTITY = ("name", "family", "flops", SEED)
"""Columns that tell the runs of a table apart, where it has names."""
Over = Literal["runs", "seeds"]
Through = Literal["line", "pieces"]
GRID = 9
FLAT = 1e-9
"""Of the logarithm of a loss, along all of its runs: what falls by less does not fall."""
LARGEST_LOG = 100.0
"""Of a loss: far beyond what any run has, and far from what a number can hold."""


@dataclass(frozen=True)
class ScalingFit(Result):
    """Fits of two families and the compute multiplier at `loss` [at].

    families [base, other]; exponent and coefficient per family with a 95 % interval (`low`, `high`), in log space:
    log L = log_coefficient - exponent log C. multiplier [at] with its interval. Points are in `points`, as
    (family, FLOPs, loss). seeds: those that the intervals are over; none where they are over runs. by_seed: the
    multiplier of each of them at the lowest loss. measure: the column of the loss.
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
    seeds: tuple[int, ...] = ()
    measure: str = "loss"
    by_seed: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        # A file may hold lines that no runs have: what is drawn takes their exponential.
        for number, family in enumerate(self.families):
            points = [(flops, loss) for name, flops, loss in self.points if name == family]
            _require_runs(family, points)
            if not all(abs(self.log_loss(number, flops)) < LARGEST_LOG for flops, _ in points):
                raise UserError(f"The line of {family} is at no loss that a run could have.")

    def line(self, number: int) -> tuple[list[float], list[float]]:
        """(FLOPs, loss) at both ends of the fitted line of a family: 0 is the base, 1 the other."""
        flops = [flops for name, flops, _ in self.points if name == self.families[number]]
        ends = [min(flops), max(flops)]
        return ends, [math.exp(self.log_loss(number, end)) for end in ends]

    def log_loss(self, number: int, flops: float) -> float:
        """The logarithm of the loss that the line of a family has at some FLOPs: 0 is the base, 1 the other."""
        return self.log_coefficient[number] - self.exponent[number] * math.log(flops)

    def labels(self, axis: str) -> list[Any] | None:
        return [f"loss {float(value):.4g}" for value in self.loss] if axis == "at" else None

    def sentence(self) -> str:
        """The result in words, at the lowest loss that both families reached."""
        base, other = self.families
        low, high = float(self.multiplier_low[0]), float(self.multiplier_high[0])
        remark = "" if low > 1 or high < 1 else "; the interval includes 1, so no difference is shown"
        over = f" over {len(self.seeds)} seeds" if self.seeds else " over runs"
        times = beside(float(self.multiplier[0]), 1)
        return (
            f"At a loss of {float(self.loss[0]):.4g}, {base} needs {times} times the compute of {other} "
            f"(95 % interval{over} {beside(low, 1)} to {end_text(high)}){remark}."
        )

    def warnings(self) -> list[str]:
        runs = min(sum(point[0] == family for point in self.points) for family in self.families)
        few, what = (
            (len(self.seeds), "seeds; with more of them") if self.seeds else (runs, "runs of a family; with more sizes")
        )
        return [f"The intervals rest on {few} {what} they are more reliable."] if few < 5 else []


@analysis(
    title="Scaling fit",
    question="How does loss fall with compute, and what does composition save?",
    guide="training.md",
    example={"runs": "runs/scaling/results.csv"},
)
def scaling_fit(
    runs: str | list[str] | list[tuple[str, float, float]],
    *,
    base: str = "transformer++",
    other: str = "dcformer++",
    loss: str | None = None,
    over: Over = "runs",
    through: Through = "line",
    without: list[str] | None = None,
    resamples: Count = 2000,
    seed: int = 0,
) -> ScalingFit:
    """Loss against compute for two families, and the compute multiplier at equal loss.

    Args:
        runs: the results.csv of a sweep or an experiment (columns family, flops and a loss; the runs of an experiment's
            search are left out), several of them, or points (family, FLOPs, loss).
        base, other: the families to compare.
        loss: column of the loss; validation_loss where the table has it, else loss.
        over: what the intervals are over: "runs", one line for all of a family; or "seeds", a line for every seed, of
            which the table must have at least two with runs of both families at the same amounts of compute.
        through: what gives a seed's compute at a loss: its "line", or straight "pieces" from run to run, which a curved
            truth does not put off. Exponents are those of the lines either way.
        without: arms of experiments whose runs are left out.
        resamples: lines drawn for the intervals over runs.
        seed: seed of the draws.

    Raises:
        UserError: the points do not support a fit; the sentence says why.
    """
    table, column = _table(runs, loss)
    if without and "arm" not in table:
        raise UserError("Only runs of an experiment have arms that could be left out.")
    for arm in without or ():
        if arm not in (there := set(table["arm"])):
            raise UserError(f"No finished run is of the arm {arm!r}; {nearest(arm, there)}")
    if without:
        table = table[~table["arm"].isin(without)]
    for family in (base, other):
        if family not in set(table["family"]):
            raise UserError(f"No finished run is of the family {family!r}; {nearest(family, set(table['family']))}")
    if base == other:
        raise UserError(f"The two families are both {base!r}; name two.")
    table = table[table["family"].isin((base, other))]
    if over == "seeds":
        drawn = _over_seeds(table, (base, other), through)
        table = table[table[SEED].isin(drawn["seeds"])]
    elif through == "line":
        drawn = _over_runs(table, (base, other), resamples, seed)
    else:
        raise UserError("Pieces from run to run need over='seeds': they are drawn for each seed.")
    return ScalingFit(
        families=(base, other),
        points=tuple(table[["family", "flops", "at"]].itertuples(index=False, name=None)),
        measure=column,
        **drawn,
    )


def _over_runs(table: pd.DataFrame, families: tuple[str, str], resamples: int, seed: int) -> dict[str, Any]:
    """One line through all runs of a family; intervals from lines drawn around it."""
    fits = [_checked(family, table) for family in families]
    grid = _common_losses([[fit] for fit in fits], families)
    flops = [np.exp(_inverse(fit.line, grid)) for fit in fits]
    random = np.random.default_rng(seed)
    lines = [fit.draw(resamples, random) for fit in fits]
    exponents = [-drawn[:, 0] for drawn in lines]
    with np.errstate(all="ignore"):
        ratios = np.exp(_inverse(lines[0], grid) - _inverse(lines[1], grid))
    # A drawn line that does not fall has no multiplier; it counts as both extremes.
    falling = (lines[0][:, 0] < 0) & (lines[1][:, 0] < 0)
    low = np.quantile(np.where(falling[:, None], ratios, 0.0), 0.025, axis=0)
    with np.errstate(invalid="ignore"):  # between two infinite ones
        high = np.quantile(np.where(falling[:, None], ratios, np.inf), 0.975, axis=0)
    high[np.isnan(high)] = np.inf
    return dict(
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


def _over_seeds(table: pd.DataFrame, families: tuple[str, str], through: Through) -> dict[str, Any]:
    """A line for every family and seed; means of what they give, with Student's t over seeds."""
    if SEED not in table:
        raise UserError(f"Intervals over seeds need a table with the column {SEED!r}; without it take over='runs'.")
    seeds = _paired_seeds(table, families)
    fits = [[_checked(family, table[table[SEED] == seed]) for seed in seeds] for family in families]
    grid = _common_losses(fits, families, lines=True)
    slopes, levels = (np.array([[fit.line[part] for fit in each] for each in fits]) for part in (0, 1))
    log_flops = np.array([[fit.log_flops(grid, through) for fit in each] for each in fits])  # [family, seed, at]
    low, middle, high = np.exp(student_interval(log_flops[0] - log_flops[1]))
    exponent_low, exponent, exponent_high = student_interval(-slopes.T)
    return dict(
        exponent=_pair(exponent),
        exponent_low=_pair(exponent_low),
        exponent_high=_pair(exponent_high),
        log_coefficient=_pair(levels.mean(1)),
        largest_residual=_pair(max(np.abs(fit.residuals).max() for fit in each) for each in fits),
        loss=torch.from_numpy(np.exp(grid)),
        base_flops=torch.from_numpy(np.exp(log_flops[0].mean(0))),
        other_flops=torch.from_numpy(np.exp(log_flops[1].mean(0))),
        multiplier=torch.from_numpy(middle),
        multiplier_low=torch.from_numpy(low),
        multiplier_high=torch.from_numpy(high),
        seeds=tuple(seeds),
        by_seed=tuple(np.exp(log_flops[0] - log_flops[1])[:, 0].tolist()),
    )


def _paired_seeds(table: pd.DataFrame, families: tuple[str, str]) -> list[int]:
    """The seeds of which each family has all its runs: at every amount of compute as many as any other seed."""
    table = table[table["family"].isin(families)]
    runs = table.groupby([SEED, "family", "flops"]).size().unstack(SEED, fill_value=0)  # [family and flops, seed]
    whole = runs.eq(runs.max(axis=1), axis=0).all()
    seeds = sorted(whole.index[whole])
    if len(seeds) < 2:
        raise UserError(
            f"Seeds with every run of both families: {len(seeds)}. Intervals over seeds need at least 2 of them."
        )
    return [int(seed) for seed in seeds]


def student_interval(values: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(low, mean, high) over the first axis, with the interval of Student's t."""
    from scipy.special import stdtrit

    mean, n = values.mean(0), len(values)
    error = float(stdtrit(n - 1, (1 + level) / 2)) * values.std(0, ddof=1) / math.sqrt(n)
    return mean - error, mean, mean + error


def end_text(value: float) -> str:
    """An end of the interval of a multiplier, which may be infinite where some drawn lines do not fall."""
    return beside(value, 1) if math.isfinite(value) else "no bound"


def _first_at(x: np.ndarray, y: np.ndarray, level: float) -> float:
    """Where straight pieces through points in the order of `x` first come down to `level`; at the lowest if nowhere."""
    at = int(np.argmax(y <= level)) if (y <= level).any() else int(np.argmin(y))
    if at == 0 or y[at] > level:
        return float(x[at])
    return float(x[at - 1] + (y[at - 1] - level) / (y[at - 1] - y[at]) * (x[at] - x[at - 1]))


@dataclass(frozen=True)
class _Fit:
    """log L on log C for one family."""

    x: np.ndarray
    y: np.ndarray
    line: np.ndarray

    @property
    def residuals(self) -> np.ndarray:
        return self.y - self.at(self.x)

    def at(self, x: Any) -> Any:
        """The line at a log C."""
        return self.line[0] * x + self.line[1]

    def log_flops(self, log_loss: np.ndarray, through: Through) -> np.ndarray:
        """log C of each loss: on the line, or on straight pieces from run to run."""
        if through == "line":
            return _inverse(self.line, log_loss)
        order = np.argsort(self.x)
        x, y = self.x[order], self.y[order]
        return np.array([_first_at(x, y, loss) for loss in log_loss])

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


def _table(runs: str | list[str] | list[tuple[str, float, float]], loss: str | None) -> tuple[pd.DataFrame, str]:
    """A row for every run that counts, with its loss in the column "at", and what the loss is called."""
    if isinstance(runs, str | Path):
        return _read(Path(runs), loss)
    paths = [Path(each) for each in runs if isinstance(each, str | Path)]
    if paths and len(paths) == len(runs):
        if len({path.resolve() for path in paths}) < len(paths):
            raise UserError("A table is named twice, which would count its runs twice; name each table once.")
        read = [_read(path, loss) for path in paths]
        if len(columns := list(dict.fromkeys(column for _, column in read))) > 1:
            raise UserError(f"The tables have losses of different kinds ({', '.join(columns)}); name one with --loss.")
        table = pd.concat([table for table, _ in read], ignore_index=True)
        # Two sweeps may give runs the same names; only their losses tell them apart.
        if (again := _repeated(table, [*IDENTITY, "at"])) is not None:
            raise UserError(f"{again} is in more than one of the tables; take it out of all but one.")
        return table, columns[0]
    points = [each for each in runs if not isinstance(each, str)]
    made = [(str(family), float(flops), float(value)) for family, flops, value in points]
    return pd.DataFrame(made, columns=["family", "flops", "at"]), "loss"


def _read(path: Path, loss: str | None) -> tuple[pd.DataFrame, str]:
    if not path.is_file():
        raise UserError(f"There is no table at {path}; give the results.csv of a sweep.")
    table = read_results(path, COLUMNS, "give the results.csv that `dcinterp sweep` wrote")
    if "status" in table:
        table = table[table["status"] == "done"]
    if "stage" in table:
        table = table[table["stage"] == FINAL]
    if (again := _repeated(table, IDENTITY if "name" in table else table.columns)) is not None:
        raise UserError(f"{again} is in {path} twice; take one of its rows out, or give each run a name of its own.")
    column = loss or _loss_column(path, table)
    if column not in table:
        raise UserError(f"{path} has no column {column!r}; {nearest(column, table.columns)}")
    require_numbers(table, ("flops", column), path)
    return table.dropna(subset=["flops", column]).assign(at=lambda rows: rows[column].astype(float)), column


def _repeated(table: pd.DataFrame, columns: Sequence[str]) -> str | None:
    """The first run whose row is in a table again, by those of the columns that it has; None where none is."""
    again = table[table.duplicated([column for column in columns if column in table])]
    return _run_text(again.iloc[0]) if len(again) else None


def _run_text(row: pd.Series) -> str:
    """A run as a person finds it in the table."""
    return f"The run {row['name']}" if "name" in row else f"A run of {row['family']} with {row['flops']} FLOPs"


def _loss_column(path: Path, table: pd.DataFrame) -> str:
    """The loss of a table for which none was named: the validation loss, or the one of training where it has none."""
    there = [column for column in LOSSES if column in table]
    if not there:
        raise UserError(f"{path} has no column {' or '.join(map(repr, LOSSES))}; name the one of its loss with --loss.")
    column = next((column for column in there if table[column].notna().any()), there[0])
    if len(empty := table[table[column].isna()]):
        # The training loss in its place would be another measure, of all runs.
        rows = ", ".join(str(number + 2) for number in empty.index[:5]) + (", ..." if len(empty) > 5 else "")
        raise UserError(
            f"{path} has no {column} in {len(empty)} of its rows (line {rows}); fill it in, take the rows out, or name "
            "the column to go by with --loss."
        )
    return column


def _require_runs(family: str, chosen: list[tuple[float, float]]) -> None:
    if not chosen:
        raise UserError(f"There is no run of {family}.")
    if any(not (flops > 0 and loss > 0 and math.isfinite(flops * loss)) for flops, loss in chosen):
        raise UserError(f"A run of {family} has no positive, finite compute and loss; leave it out.")


def _checked(family: str, table: pd.DataFrame) -> _Fit:
    """The line of one family; a UserError says why there is none."""
    rows = table[table["family"] == family]
    chosen = list(zip(rows["flops"].astype(float), rows["at"], strict=True))
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
    if line[0] * float(np.ptp(x)) > -FLAT:
        raise UserError(f"The loss of {family} does not fall with compute in these runs, so there is nothing to fit.")
    return _Fit(x, y, line)


def _common_losses(fits: list[list[_Fit]], families: tuple[str, str], *, lines: bool = False) -> np.ndarray:
    """Logarithms of losses, lowest first, that the runs of every fit reached, and their `lines` within these runs.

    Over runs the lines are not asked, so that saved results of version 0.1 replay.
    """
    every = [fit for each in fits for fit in each]
    lowest = max(max(fit.y.min(), fit.at(fit.x.max()) if lines else -math.inf) for fit in every)
    highest = min(min(fit.y.max(), fit.at(fit.x.min()) if lines else math.inf) for fit in every)
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
