"""The part of an experiment's page on compute: how many times a family's FLOPs the other needs for the same loss."""

from __future__ import annotations

import math
from statistics import fmean

import pandas as pd

from dcinterp.analysis.training.scaling_fit import Over, ScalingFit, Through, scaling_fit
from dcinterp.evidence.verdict_words import NO_VERDICT, Verdict, one_by_one, verdict_words
from dcinterp.support.errors import UserError
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import FINAL, Experiment, read_table

TEXT = """
## Compute for the same loss

![A point for every run, and the mean of each family's lines]({picture})

The multiplier is the FLOPs of {base} over those of {other} at the same loss, along the sizes and lengths of training
that were run: {arms}. *By lines*: a line of log loss on log FLOPs for each family and seed, through all sizes.
*By pieces*: straight pieces from size to size instead, which a curve does not put off. Brackets are 95 % intervals over
seeds (Student's t of its logarithm). Only the first row, the lowest loss, is tested: the others are made of the same
runs and are no further evidence, also where an interval leaves out 1.

    {command} --over seeds
    {command} --over seeds --through pieces

{multipliers}

{slopes}

How far the mean of a size is from the mean line:

{residuals}

Besides, and no hypothesis: without `--over seeds`, with one line through all runs of a family, which takes each of them
to scatter by itself, and at the lowest loss of these lines, which not every run need have reached. {pooled}
"""


def fit_of(experiment: Experiment, over: Over = "seeds", through: Through = "line") -> ScalingFit:
    """The fit that the experiment's `multiplier` asks for, of its primary measure.

    Raises:
        UserError: an arm has no run, the runs support no fit, or the table has runs that do not count.
    """
    assert experiment.multiplier is not None
    measure, without = next(iter(experiment.measures)), experiment.multiplier.without
    for each in experiment.series():
        table = read_table(each)
        ended = table[(table["stage"] == FINAL) & (table["status"] == "done")].dropna(subset=[measure])
        ended = ended[~ended["arm"].isin(without)]
        if other := sorted(set(ended["name"]) - set(each.counted(table)["name"])):
            raise UserError(
                f"{each.table} has {len(other)} runs of other seeds, or of values that the search did not choose, "
                f"such as {other[0]}; `dcinterp scaling` would read them too, so take their rows out."
            )
        if missing := [arm for arm in each.arms if arm not in (*ended["arm"], *without)]:
            raise UserError(f"No run of {', '.join(missing)} has ended with a loss, and a line needs all sizes.")
    tables = [str(each.table) for each in experiment.series()]
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


def multiplier_verdict(experiment: Experiment) -> Verdict:
    """The hypothesis on the multiplier, what it is at the lowest common loss, and whether the intervals support it."""
    assert experiment.multiplier is not None
    asked = experiment.multiplier.name, "the compute multiplier", "1"
    try:
        fits = [fit_of(experiment, through="line"), fit_of(experiment, through="pieces")]
    except UserError as problem:
        return Verdict(*asked, "", "none", "", str(problem).removesuffix("."), NO_VERDICT)
    fit = fits[0]
    low, high = (
        min(float(each.multiplier_low[0]) for each in fits),
        max(float(each.multiplier_high[0]) for each in fits),
    )
    side = (low > 1) - (high < 1)
    edge = experiment.costlier_at_an_edge(experiment.multiplier, side)
    word, says = verdict_words(side, refuted="it is below 1", at_an_edge=edge, marks=experiment.edge_marks)
    if interim := len(fit.seeds) < len(experiment.seeds):
        word = NO_VERDICT
        says = f"{len(fit.seeds)} of {len(experiment.seeds)} seeds have a run of every arm: {NO_VERDICT}"
    few = one_by_one(*(each.by_seed for each in fits), form=".2f")
    return Verdict(
        *asked,
        where=f"at {float(fit.loss[0]):.3f}, the lowest loss that both families reached in every seed",
        found=f"by lines {_times(fit, 0)}, by pieces {_times(fits[1], 0)}",
        over=f"{len(fit.seeds)} seeds{few}",
        says=says,
        word=word,
        at_an_edge=bool(edge) and not interim,
    )


def compute_section(experiment: Experiment, picture: str) -> str:
    """Markdown with the figure, the multiplier at several losses, slopes and residuals; empty where there is no fit."""
    if (fit := found_fit(experiment)) is None:
        return ""
    pieces, pooled = fit_of(experiment, through="pieces"), fit_of(experiment, "runs")
    rows = [[f"{float(fit.loss[at]):.3f}", _times(fit, at), _times(pieces, at)] for at in range(len(fit.loss))]
    slopes = "; that of ".join(
        f"{family} falls as compute to the power of -{fit.exponent[at]:.4f} "
        f"[-{fit.exponent_high[at]:.4f}, -{fit.exponent_low[at]:.4f}]"
        for at, family in enumerate(fit.families)
    )
    measure, name = next(iter(experiment.measures.items()))
    tables = (f"experiments/{each.folder.name}/results.csv" for each in experiment.series())
    command = f"dcinterp scaling {' '.join(tables)} --loss {measure}"
    assert experiment.multiplier is not None
    command += "".join(f' --without "{arm}"' for arm in experiment.multiplier.without)
    return TEXT.format(
        picture=picture,
        base=fit.families[0],
        other=fit.families[1],
        arms=_arms(experiment, fit),
        command=command,
        multipliers=markdown_table([name, "multiplier, by lines", "by pieces"], rows),
        slopes=f"The loss of {slopes}.",
        residuals=_residuals(fit),
        pooled=pooled.sentence(),
    )


def _arms(experiment: Experiment, fit: ScalingFit) -> str:
    """The arms of both families, by compute."""
    table = pd.concat([read_table(each) for each in experiment.series()])
    assert experiment.multiplier is not None
    table = table[(table["stage"] == FINAL) & ~table["arm"].isin(experiment.multiplier.without)].sort_values("flops")
    of = ((family, table.loc[table["family"] == family, "arm"].unique()) for family in fit.families)
    return "; ".join(f"{family} is {', '.join(f'*{arm}*' for arm in arms)}" for family, arms in of)


def _residuals(fit: ScalingFit) -> str:
    """A row a family: by how much the mean of each size is above the mean line; a curve shows as a pattern of signs."""
    rows = []
    for number, family in enumerate(fit.families):
        by_size: dict[float, list[float]] = {}
        for name, flops, loss in fit.points:
            if name == family:
                by_size.setdefault(flops, []).append(math.log(loss))
        apart = (fmean(by_size[at]) - fit.log_loss(number, at) for at in sorted(by_size))
        rows.append([family, *(f"{each:+.2%}" for each in apart)])
    return markdown_table(["family", *(f"size {at + 1}" for at in range(len(rows[0]) - 1))], rows)


def _times(fit: ScalingFit, at: int) -> str:
    return (
        f"{float(fit.multiplier[at]):.2f} [{float(fit.multiplier_low[at]):.2f}, {float(fit.multiplier_high[at]):.2f}]"
    )
