"""The part of an experiment's page on compute: how many times a family's FLOPs the other needs for the same loss."""

from __future__ import annotations

from dcinterp.analysis.training.scaling_fit import Over, ScalingFit, scaling_fit
from dcinterp.support.errors import UserError
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment

TEXT = """
## Compute for the same loss

![A point for every run, and the mean of each family's lines]({picture})

A line of log loss on log FLOPs for each family and seed, through all sizes; the multiplier is the FLOPs of {base} over
those of {other} at the same loss, and brackets are 95 % intervals over seeds (Student's t of its logarithm).

    {command} --over seeds

{table}

{slopes}

Without `--over seeds`, with one line through all runs of a family, which takes each of them to scatter by itself:
{pooled}
"""


def fit_of(experiment: Experiment, over: Over = "seeds") -> ScalingFit:
    """The fit that the experiment's `multiplier` asks for, of its primary measure.

    Raises:
        UserError: its runs support no fit.
    """
    assert experiment.multiplier is not None
    return scaling_fit(
        str(experiment.table),
        base=experiment.multiplier.base,
        other=experiment.multiplier.other,
        loss=next(iter(experiment.measures)),
        over=over,
    )


def multiplier_verdict(experiment: Experiment) -> str:
    """The hypothesis on the multiplier, what it is at the lowest common loss, and whether the interval supports it."""
    assert experiment.multiplier is not None
    asks = f"**{experiment.multiplier.name}** (the compute multiplier is above 1"
    try:
        fit = fit_of(experiment)
    except UserError as problem:
        return f"{asks}): none. {problem}"
    low, high = float(fit.multiplier_low[0]), float(fit.multiplier_high[0])
    says = "**supported**" if low > 1 else "**refuted**: it is below 1" if high < 1 else "**open**"
    if len(fit.seeds) < len(experiment.seeds):
        says = f"interim, {len(fit.seeds)} of {len(experiment.seeds)} seeds: no verdict"
    at = f"{asks}, at {float(fit.loss[0]):.3f}, the lowest loss that both families reached in every seed)"
    return f"{at}: {_times(fit, 0)} over {len(fit.seeds)} seeds; {says}."


def compute_section(experiment: Experiment, picture: str) -> str:
    """Markdown with the figure, the multiplier at several losses and the slopes; empty where there is no fit."""
    try:
        fit, pooled = fit_of(experiment), fit_of(experiment, "runs")
    except UserError:
        return ""
    rows = [[f"{float(fit.loss[at]):.3f}", _times(fit, at)] for at in range(len(fit.loss))]
    slopes = "; ".join(
        f"{family} falls as compute to the power of -{fit.exponent[at]:.4f} "
        f"[{fit.exponent_low[at]:.4f}, {fit.exponent_high[at]:.4f}], and no run is further from its line than "
        f"{fit.largest_residual[at]:.1%}"
        for at, family in enumerate(fit.families)
    )
    measure, name = next(iter(experiment.measures.items()))
    command = f"dcinterp scaling experiments/{experiment.folder.name}/results.csv --loss {measure}"
    return TEXT.format(
        picture=picture,
        base=fit.families[0],
        other=fit.families[1],
        command=command,
        table=markdown_table([name, "multiplier"], rows),
        slopes=f"The loss of {slopes}.",
        pooled=pooled.sentence(),
    )


def _times(fit: ScalingFit, at: int) -> str:
    return (
        f"{float(fit.multiplier[at]):.2f} [{float(fit.multiplier_low[at]):.2f}, {float(fit.multiplier_high[at]):.2f}]"
    )
