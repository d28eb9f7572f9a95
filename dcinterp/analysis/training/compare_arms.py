"""The arms of an experiment, compared over seeds.

    mean_a = mean over seeds of the measure of arm a
    difference_a = mean over seeds of (measure of a - measure of the baseline), the two of a seed together

Source: none; these are paired differences, with the intervals of dcinterp.mechanism.statistics.bootstrap_interval.

A seed fixes the documents and starts the weights, so the two runs of a seed share their documents, and not their
weights. It does not show that an arm is better in general: the numbers are those of one task at one size, and of arms
that were tuned by the search that the experiment states. With several arms some interval misses its truth more often
than one in twenty: each covers by itself.

Identity that the tests assert: the difference is that of the two means when every seed has both runs.

    found = dcinterp.compare_arms("experiments/recombination")
    found.sentences()
    dcinterp.figures.plot(found)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.mechanism.statistics import bootstrap_interval, without_width
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.text import beside, shown
from dcinterp.train.control.experiment import DRAWS, Experiment, NoRunsYet, reported_runs, values_text
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.control.seeds import whole_seeds


@dataclass(frozen=True)
class ArmComparison(Result):
    """The measure of every run, its mean for each arm, and each arm minus the baseline.

    values [arm, seed] are of the seeds of which every arm has a run; `planned` is how many there should be (of a
    repetition, as many as the experiment has, or more). low, high bound the mean, difference_low and difference_high
    the difference, at 95 %; the baseline's own difference is 0. Of accuracies the mean has no interval (NaN): runs that
    either learn a thing or do not are two heaps, and an interval from ten of them misses the rare heap. parameters (all
    but embeddings) and flops (of training) are those of a run of the arm. `tuned` says what the search chose.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "values": ("arm", "seed"),
        **dict.fromkeys(
            ("mean", "low", "high", "difference", "difference_low", "difference_high", "parameters", "flops"), ("arm",)
        ),
    }

    experiment: str
    measure: str
    meaning: str
    baseline: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    planned: int
    tuned: tuple[str, ...]
    share: bool
    values: Float[Tensor, "arm seed"]
    mean: Float[Tensor, " arm"]
    low: Float[Tensor, " arm"]
    high: Float[Tensor, " arm"]
    difference: Float[Tensor, " arm"]
    difference_low: Float[Tensor, " arm"]
    difference_high: Float[Tensor, " arm"]
    parameters: Float[Tensor, " arm"]
    flops: Float[Tensor, " arm"]
    draws: int = DRAWS

    def labels(self, axis: str) -> list[Any] | None:
        names: dict[str, list[Any]] = {"arm": list(self.arms), "seed": list(self.seeds)}
        return names.get(axis)

    def between(self, arms: Sequence[str], baselines: Sequence[str], level: float = 0.95) -> tuple[float, float, float]:
        """(mean, low, high) over seeds of the mean of some arms minus that of others."""
        return _mean(self.by_seed(arms, baselines), (-1.0, 1.0) if self.share else None, level, self.draws)

    def by_seed(self, arms: Sequence[str], baselines: Sequence[str]) -> Float[Tensor, " seed"]:
        """The mean of some arms minus that of others, of every seed."""
        over, under = (self.values[[self.arms.index(arm) for arm in side]].mean(0) for side in (arms, baselines))
        return over - under

    def sentences(self) -> list[str]:
        """For every arm but the baseline, its difference in words."""
        found = []
        for number, arm in enumerate(self.arms):
            if arm == self.baseline:
                continue
            low, high = float(self.difference_low[number]), float(self.difference_high[number])
            verdict = " The interval includes 0, so no difference is shown." if low <= 0 <= high else ""
            if math.isnan(low):
                found.append(f"{arm} minus {self.baseline}: {float(self.difference[number]):+.3f} (one seed).")
                continue
            if without_width(low, high):
                found.append(
                    f"{arm} minus {self.baseline}: {float(self.difference[number]):+.3f}, the same in all "
                    f"{len(self.seeds)} seeds, so that there is no interval."
                )
                continue
            found.append(
                f"{arm} minus {self.baseline}: {beside(float(self.difference[number]), 0, 3, '+')} "
                f"(95 % interval {beside(low, 0, 3, '+')} to {beside(high, 0, 3, '+')}, {len(self.seeds)} "
                f"seeds).{verdict}"
            )
        return found

    def warnings(self) -> list[str]:
        few = [
            "There is one seed, so there are no intervals."
            if len(self.seeds) == 1
            else f"There are {len(self.seeds)} seeds; intervals of so few rest on how values scatter in general."
        ]
        short = [f"{whole_seeds(len(self.seeds), self.planned)}; what is shown is interim."]
        return (few if len(self.seeds) < 5 else []) + (short if len(self.seeds) < self.planned else [])


@analysis(
    title="Arms of an experiment",
    question="Which way of composing does better, over seeds?",
    guide="experiments-how.md",
    example={"experiment": "experiments/recombination"},
)
def compare_arms(
    experiment: str, *, measure: str | None = None, baseline: str | None = None, table: str | None = None
) -> ArmComparison:
    """The arms of an experiment over seeds: means, and differences from a baseline, with 95 % intervals.

    Args:
        experiment: the folder of an experiment, with its experiment.yaml.
        measure: a column of the table; the experiment's primary measure when None.
        baseline: the arm to compare with; the first when None.
        table: of the runs; results.csv in that folder when None.

    Raises:
        UserError: there is no such experiment, measure or arm, or no run has ended yet.
    """
    return arms_of(read_experiment(experiment, table=table), measure, baseline)


def _require_numbers(experiment: Experiment, rows: pd.DataFrame, measure: str) -> None:
    """Refuse a row whose measure was edited to what no run writes.

    Raises:
        UserError: it is no number, not finite, or a share outside 0 to 1; the message names the row.
    """
    for name, value in zip(rows["name"], rows[measure], strict=True):
        number = pd.to_numeric(value, errors="coerce")
        if math.isfinite(number) and (not is_share(measure) or 0 <= number <= 1):
            continue
        kind = "a share from 0 to 1" if is_share(measure) else "a number"
        raise UserError(f"{measure!r} of the run {name} in {experiment.table} is {shown(value)}; it must be {kind}.")


def arms_of(experiment: Experiment, measure: str | None = None, baseline: str | None = None) -> ArmComparison:
    """As `compare_arms`, of an experiment that was read; without a record of the call.

    Raises:
        NoRunsYet: no run has ended yet, or no seed has one of every arm.
        UserError: there is no such measure or arm, or a run that counts was made with another config.
    """
    measure, baseline = measure or next(iter(experiment.measures)), baseline or experiment.baseline
    if baseline not in experiment.arms:
        raise UserError(f"The experiment has no arm {baseline!r}; {nearest(baseline, experiment.arms)}")
    arms, (rows, wide) = list(experiment.arms), _by_seed(experiment, measure)
    planned, draws = experiment.planned(rows["recipe.seed"].astype(int)), experiment.draws
    values = torch.tensor(wide.to_numpy(float))
    share = is_share(measure)
    means = [_mean(row, None, draws=draws) if not share else (float(row.mean()), math.nan, math.nan) for row in values]
    apart = [_mean(row, (-1.0, 1.0) if share else None, draws=draws) for row in values - values[arms.index(baseline)]]
    facts = rows.reindex(columns=["arm", "parameters", "flops"]).groupby("arm").mean().reindex(arms)
    mean, low, high = (torch.tensor(column) for column in zip(*means, strict=True))
    difference, difference_low, difference_high = (torch.tensor(column) for column in zip(*apart, strict=True))
    return ArmComparison(
        experiment=experiment.title,
        measure=measure,
        meaning=experiment.measures.get(measure, measure),
        baseline=baseline,
        arms=tuple(arms),
        seeds=tuple(int(seed) for seed in wide.columns),
        planned=planned,
        tuned=tuple(_tuned(experiment, rows, arm) for arm in arms),
        share=share,
        values=values,
        mean=mean,
        low=low,
        high=high,
        difference=difference,
        difference_low=difference_low,
        difference_high=difference_high,
        parameters=torch.tensor(facts["parameters"].to_numpy(float)),
        flops=torch.tensor(facts["flops"].to_numpy(float)),
        draws=draws,
    )


def seeds_of(experiment: Experiment) -> tuple[int, ...]:
    """The seeds of which `arms_of` compares the arms by the primary measure; raises as it does."""
    return tuple(int(seed) for seed in _by_seed(experiment, next(iter(experiment.measures)))[1].columns)


def _by_seed(experiment: Experiment, measure: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The final runs that count, and their measure: a row an arm, a column a seed that has one of every arm."""
    rows = _finished(experiment, measure)
    _require_numbers(experiment, rows, measure)
    rows = rows.assign(**{measure: pd.to_numeric(rows[measure])})  # a row that does not count may have had text
    wide = rows.pivot_table(index="arm", columns="recipe.seed", values=measure).reindex(index=list(experiment.arms))
    if not (wide := wide.dropna(axis=1)).shape[1]:
        raise NoRunsYet(
            f"No seed of {experiment.folder} has a run of every arm yet; go on with `dcinterp experiment run`."
        )
    return rows, wide


def is_share(measure: str) -> bool:
    """Whether a measure of a table lies between zero and one, so that differences have bounds."""
    return measure.startswith("accuracy") or measure.endswith("accuracy")


def _finished(experiment: Experiment, measure: str) -> pd.DataFrame:
    """The final runs that count: of every arm at the values that the search chose."""
    rows = reported_runs(experiment)
    if measure not in rows:
        raise UserError(f"The table of {experiment.folder} has no column {measure!r}; {nearest(measure, rows.columns)}")
    return rows.dropna(subset=[measure])


def _mean(
    values: Tensor, bounds: tuple[float, float] | None, level: float = 0.95, draws: int = DRAWS
) -> tuple[float, float, float]:
    low, high = bootstrap_interval(values, bounds=bounds, level=level, resamples=draws)
    return float(values.mean()), float(low), float(high)


def _tuned(experiment: Experiment, rows: pd.DataFrame, arm: str) -> str:
    """What the search chose for an arm, such as "learning_rate 0.002"."""
    first = rows[rows["arm"] == arm].iloc[0]
    return values_text({key: first[key] for key in experiment.tuning_keys})
