"""The part of an experiment's page on compute: how many times a family's FLOPs the other needs for the same loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pandas as pd

from dcinterp.analysis.training.compare_arms import arms_of
from dcinterp.analysis.training.scaling_fit import ScalingFit
from dcinterp.evidence.intervals import interval_text
from dcinterp.evidence.multiplier import fit_of, found_fit, multiplier_brackets, multiplier_text, multiplier_verdict
from dcinterp.evidence.verdict_words import REFUTED, SUPPORTED
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import FINAL, Experiment, read_table, reported_runs
from dcinterp.train.control.experiment_file import series

TITLE = "## Compute for the same loss"
PICTURE = "![A point for every run, and the mean of each family's lines]({picture})"
TEXT = """The multiplier is the FLOPs of {base} over those of {other} at the same loss, along the sizes and lengths of
training that were run: {arms}. *By lines*: a line of log loss on log FLOPs for each family and seed, through all sizes.
*By pieces*: straight pieces from size to size instead, which a curve does not put off. Brackets are 95 % intervals over
seeds (Student's t of its logarithm). Only the first row, the lowest loss, has a verdict: the others are made of the
same runs and are no further evidence, also where an interval leaves out 1. {wider}

    {command} --over seeds
    {command} --over seeds --through pieces

{multipliers}

{beside}{slopes}

How far the mean of a size is from the mean line:

{residuals}

{sizes}Besides, and no hypothesis: without `--over seeds`, with one line through all runs of a family, which takes each
of them to scatter by itself, and at the lowest loss of these lines, which not every run need have reached. {pooled}
"""

BESIDE = """Two numbers to hold beside it, both by lines, at {loss:.3f}, and no hypotheses:

- Composing costs FLOPs. Were it of no use, so that both families had the losses of {other} at each width, the
  multiplier would be {no_use}. No test compares the two.
- In parameters instead of FLOPs, {base} needs {parameters} times those of {other}; were composing of no
  use, {no_use_parameters}. No interval is given. At one width both read the same text, and wider models read more, so
  that this is not at equal text either.

"""

SIZES = """At equal text, the two families of one size, seed by seed; a hypothesis is about those alone that are named
above:

{table}

"""


def compute_section(experiment: Experiment, picture: str) -> str:
    """Markdown with the figure, the multiplier at several losses, slopes and residuals; empty where there is no fit."""
    if (fit := found_fit(experiment)) is None:
        return ""
    return f"\n{TITLE}\n\n{PICTURE.format(picture=picture)}\n\n{compute_text(experiment, fit)}"


def compute_text(experiment: Experiment, fit: ScalingFit) -> str:
    """What stands below the figure.

    Args:
        experiment: with a multiplier, also with the table of a repetition.
        fit: of `found_fit`.

    Raises:
        UserError: its runs support no fit by pieces or over runs.
    """
    pieces, pooled = fit_of(experiment, through="pieces"), fit_of(experiment, "runs")
    rows = [
        [f"{float(fit.loss[at]):.3f}", multiplier_text(fit, at), multiplier_text(pieces, at)]
        for at in range(len(fit.loss))
    ]
    slopes = "; that of ".join(
        f"{family} falls as compute to the power of {-fit.exponent[at]:.4f} "
        f"[{-fit.exponent_high[at]:.4f}, {-fit.exponent_low[at]:.4f}]"
        for at, family in enumerate(fit.families)
    )
    measure, name = next(iter(experiment.measures.items()))
    tables = (f"{each.folder_text}/{each.table.name}" for each in series(experiment))
    command = f"dcinterp scaling {' '.join(tables)} --loss {measure}"
    assert experiment.multiplier is not None
    command += "".join(f' --without "{arm}"' for arm in experiment.multiplier.without)
    return TEXT.format(
        base=fit.families[0],
        other=fit.families[1],
        arms=_arms(experiment, fit),
        command=command,
        wider=_wider(experiment, (fit, pieces)),
        multipliers=markdown_table([name, "multiplier, by lines", "by pieces"], rows),
        beside=_beside(experiment, fit),
        slopes=f"The loss of {slopes}.",
        residuals=_residuals(fit),
        sizes=_sizes(experiment, fit),
        pooled=pooled.sentence(),
    )


def _wider(experiment: Experiment, fits: Sequence[ScalingFit]) -> str:
    """The interval that hypotheses on arms have, of the first row, and whether the verdict would be another by it."""
    ends = [
        [math.exp(end) for end in bootstrap_interval(np.log(each.by_seed), resamples=experiment.draws)] for each in fits
    ]
    lines, pieces = (multiplier_brackets(low, high) for low, high in ends)
    beyond = all(high < 1 for _, high in ends) or all(low > 1 for low, _ in ends)
    decided = multiplier_verdict(experiment).word in (SUPPORTED, REFUTED)
    return (
        f"By the interval of the hypotheses on arms (Student's t, and on the side of the longer tail the studentised "
        f"bootstrap where it reaches further) it would be {lines} by lines and {pieces} by pieces"
        f"{', and the hypothesis open' * (decided and not beyond)}; its verdict goes by Student's t alone."
    )


def _arms(experiment: Experiment, fit: ScalingFit) -> str:
    """The arms of both families, by compute."""
    table = pd.concat([read_table(each) for each in series(experiment)])
    assert experiment.multiplier is not None
    table = table[(table["stage"] == FINAL) & ~table["arm"].isin(experiment.multiplier.without)].sort_values("flops")
    of = ((family, table.loc[table["family"] == family, "arm"].unique()) for family in fit.families)
    return "; ".join(f"{family} is {', '.join(f'*{arm}*' for arm in arms)}" for family, arms in of)


def _beside(experiment: Experiment, fit: ScalingFit) -> str:
    """What the multiplier would be if composing changed no loss, and the same of parameters, in words.

    Empty where one family has more arms than the other, so that they are no pairs.
    """
    assert experiment.multiplier is not None
    runs = pd.concat([reported_runs(each) for each in series(experiment)])
    runs = runs[~runs["arm"].isin(experiment.multiplier.without)]
    base, other = pairs = [_by_size(runs, family) for family in fit.families]
    if len(base) != len(other):
        return ""
    facts = runs.groupby("arm")[["flops", "parameters"]].first()
    flops, parameters = ([np.log(facts.loc[arms, column]) for arms in pairs] for column in ("flops", "parameters"))
    losses = runs.pivot_table(index="recipe.seed", columns="arm", values=fit.measure).loc[list(fit.seeds)]
    base_loss, other_loss = (np.log(losses[arms].to_numpy()) for arms in pairs)

    def apart(sizes: Sequence[pd.Series], losses: Sequence[np.ndarray]) -> np.ndarray:
        """[seed]: by how much the logarithm of the size differs where two lines are at the loss."""
        at = (reached(math.log(float(fit.loss[0])), *each) for each in zip(sizes, losses, strict=True))
        return next(at) - next(at)

    return BESIDE.format(
        base=fit.families[0],
        other=fit.families[1],
        loss=float(fit.loss[0]),
        no_use=_geometric(apart(flops, (other_loss, other_loss))),
        parameters=_geometric(apart(parameters, (base_loss, other_loss))),
        no_use_parameters=_geometric(apart(parameters, (other_loss, other_loss))),
    )


def reached(log_loss: float, sizes: Sequence[float], losses: np.ndarray) -> np.ndarray:
    """[seed]: the logarithm of the size at which a line of log loss on log size reaches a loss, by least squares.

    Args:
        log_loss: the loss.
        sizes: [size], logarithms.
        losses: [seed, size], logarithms.
    """
    slopes, levels = np.polyfit(np.asarray(sizes), losses.T, 1)
    return (log_loss - levels) / slopes


def _geometric(logs: np.ndarray) -> str:
    """The geometric mean of what differs by these logarithms, and each, in words."""
    return f"{math.exp(logs.mean()):.2f} (seed by seed {', '.join(f'{each:.2f}' for each in np.exp(logs))})"


def _sizes(experiment: Experiment, fit: ScalingFit) -> str:
    """A row for every size of the experiment's own runs: the first family minus the second, at equal text.

    Empty where one family has more arms than the other, so that they are no pairs.
    """
    runs = reported_runs(experiment)
    first, second = (_by_size(runs, family) for family in fit.families)
    if len(first) != len(second):
        return ""
    found, rows = arms_of(experiment), []
    for one, other in zip(first, second, strict=True):
        rows.append([f"{one} minus {other}", interval_text(*found.between([one], [other]), sign="+")])
    return SIZES.format(table=markdown_table(["", found.meaning], rows))


def _by_size(runs: pd.DataFrame, family: str) -> list[str]:
    """The arms of a family, the smallest model first."""
    return list(runs[runs["family"] == family].sort_values("parameters", kind="stable")["arm"].unique())


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
    most = max(map(len, rows))
    rows = [row + [""] * (most - len(row)) for row in rows]
    return markdown_table(["family", *(f"size {at + 1}" for at in range(most - 1))], rows)
