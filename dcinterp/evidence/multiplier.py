"""The compute multiplier of an experiment: its fit, and what becomes of the hypothesis on it."""

from __future__ import annotations

from typing import SupportsFloat

import numpy as np

from dcinterp.analysis.training.scaling_fit import Over, ScalingFit, Through, scaling_fit, student_interval
from dcinterp.evidence.intervals import one_by_one
from dcinterp.evidence.verdict_words import LEVEL, NO_VERDICT, Verdict, verdict_words
from dcinterp.mechanism.statistics import without_width
from dcinterp.support.errors import UserError
from dcinterp.support.text import beside
from dcinterp.train.control.experiment import FINAL, Experiment, Multiplier, read_table, reported_runs
from dcinterp.train.control.experiment_file import series
from dcinterp.train.control.seeds import whole_seeds


def fit_of(experiment: Experiment, over: Over = "seeds", through: Through = "line") -> ScalingFit:
    """The fit that the experiment's `multiplier` asks for, of its primary measure.

    Raises:
        UserError: an arm has no run, the runs support no fit, or the table has runs that do not count.
    """
    assert experiment.multiplier is not None
    measure, without = next(iter(experiment.measures)), experiment.multiplier.without
    for each in series(experiment):
        if not each.table.is_file():
            raise UserError(
                f"There is no {each.table}; the multiplier needs the runs of those sizes, with the same seeds, there."
            )
        table = read_table(each)
        if measure not in table:
            raise UserError(f"{each.table} has no column {measure!r}, the loss that the multiplier is about.")
        ended = table[(table["stage"] == FINAL) & (table["status"] == "done")].dropna(subset=[measure])
        ended = ended[~ended["arm"].isin(without)]
        if other := sorted(set(ended["name"]) - set(each.counted(table)["name"])):
            raise UserError(
                f"{each.table} has {len(other)} runs of other seeds, or of values that the search did not choose, "
                f"such as {other[0]}; `dcinterp scaling` would read them too, so take their rows out."
            )
        if missing := [arm for arm in each.arms if arm not in (*ended["arm"], *without)]:
            raise UserError(f"No run of {', '.join(missing)} has ended with a loss, and a line needs all sizes.")
    tables = [str(each.table) for each in series(experiment)]
    return scaling_fit(
        tables[0] if len(tables) == 1 else tables,
        base=experiment.multiplier.base,
        other=experiment.multiplier.other,
        loss=measure,
        over=over,
        through=through,
        without=list(experiment.multiplier.without) or None,
    )


def found_fit(experiment: Experiment) -> ScalingFit | None:
    """The fit over seeds; none where the experiment asks for none, or its runs support none (the verdict says why)."""
    if experiment.multiplier is None:
        return None
    try:
        return fit_of(experiment)
    except UserError:
        return None


def multiplier_verdict(experiment: Experiment, level: float = LEVEL) -> Verdict:
    """The hypothesis on the multiplier, what it is at the lowest common loss, and whether the intervals support it.

    Args:
        experiment: whose multiplier it is.
        level: of the intervals that the verdict goes by; those that are shown are of 95 %.
    """
    assert experiment.multiplier is not None
    asked = experiment.multiplier.name, "the compute multiplier", "1"
    try:
        fits = [fit_of(experiment, through="line"), fit_of(experiment, through="pieces")]
    except UserError as problem:
        return Verdict(*asked, "", "none", "", str(problem).removesuffix("."), NO_VERDICT)
    fit = fits[0]
    ends = [student_interval(np.log(each.by_seed), level) for each in fits]
    # Of seeds that all give the same there is no interval, and so no side.
    known = not any(without_width(float(low), float(high)) for low, _, high in ends)
    side = known * (all(low > 0 for low, _, _ in ends) - all(high < 0 for _, _, high in ends))
    edge = _costlier_at_an_edge(experiment, experiment.multiplier, side)
    word, says = verdict_words(side, refuted="it is below 1", at_an_edge=edge, marks=experiment.edge_marks)
    planned = _planned(experiment)
    if interim := len(fit.seeds) < planned:
        word = NO_VERDICT
        says = f"{whole_seeds(len(fit.seeds), planned)}: {NO_VERDICT}"
    few = one_by_one(*(each.by_seed for each in fits), form=".2f")
    return Verdict(
        *asked,
        where=f"at {float(fit.loss[0]):.3f}, the lowest loss that both families reached in every seed",
        found=f"by lines {multiplier_text(fit, 0)}, by pieces {multiplier_text(fits[1], 0)}",
        over=f"{len(fit.seeds)} seeds{few}",
        says=says,
        word=word,
        at_an_edge=bool(edge) and not interim,
    )


def _planned(experiment: Experiment) -> int:
    """How many seeds there will be; in the table of a repetition, at least those that any arm has."""
    if experiment.has_own_table:
        return experiment.planned(())
    return experiment.planned([int(seed) for each in series(experiment) for seed in reported_runs(each)["recipe.seed"]])


def multiplier_text(fit: ScalingFit, at: int) -> str:
    """The multiplier at one of the fit's losses, with its interval."""
    return (
        f"{beside(float(fit.multiplier[at]), 1)} {multiplier_brackets(fit.multiplier_low[at], fit.multiplier_high[at])}"
    )


def multiplier_brackets(low: SupportsFloat, high: SupportsFloat) -> str:
    """The ends of a multiplier's interval, with more decimals where two would not tell on which side of 1 it is."""
    return f"[{beside(float(low), 1)}, {beside(float(high), 1)}]"


def _costlier_at_an_edge(experiment: Experiment, multiplier: Multiplier, side: int) -> list[str]:
    """As `Experiment.worse_at_an_edge`, of the sizes of the family that a verdict on a multiplier goes against.

    Args:
        experiment: whose multiplier it is.
        multiplier: what was measured.
        side: of 1 where its intervals lie, 1 or -1; 0 where there is no verdict.
    """
    if not experiment.measure_best or not side:
        return []
    family = multiplier.base if side > 0 else multiplier.other
    found = []
    for each in series(experiment):
        table = read_table(each)
        counted = each.counted(table)
        of_family = set(counted.loc[counted["family"] == family, "arm"])
        found += [arm for arm in each.chosen_at_an_edge(table) if arm in of_family - set(multiplier.without)]
    return found
