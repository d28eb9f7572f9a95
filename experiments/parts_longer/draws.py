"""How far the words of a repetition hang on the draws of the bootstrap.

    python experiments/parts_longer/draws.py
    python experiments/parts_longer/draws.py --folder experiments/another --first --level 0.983

prints, of every hypothesis, its interval in the runs of other seeds (`--first`: of the first) at the level that decides
again (or `--level`), on which side of zero it lies, and how many of forty other seeds of the draws put it on the same
side. `--resamples 20000` draws more often than the verdicts of the first seeds do. All but these options was written
before any run of these.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from dcinterp.evidence.intervals import interval_text
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsFolder
from dcinterp.evidence.verdicts import required_replication, side_of_zero, whole_comparison
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment
from dcinterp.train.control.experiment_file import read_experiment

HERE = Path(__file__).parent
OTHER = range(1, 41)
"""Seeds of the draws; the verdicts have 0."""
SIDES = {1: "above zero", 0: "holds zero", -1: "below zero"}


def summary(again: Experiment, level: float | None = None, resamples: int | None = None) -> str:
    """A row for each hypothesis, as Markdown, at its own level and with the draws of its verdict when None.

    Raises:
        UserError: the planned seeds have not all a run of every arm.
    """
    rows = []
    for each in again.hypotheses:
        found = whole_comparison(again, each.measure or None)
        apart, bounds = found.by_seed(each.arms, each.baselines), (-1.0, 1.0) if found.share else None
        decides = level or each.again
        draw = partial(bootstrap_interval, apart, level=decides, bounds=bounds, resamples=resamples or again.draws)
        ends = [draw(seed=seed) for seed in (0, *OTHER)]
        sides = [side_of_zero(float(low), float(high)) for low, high in ends]
        shown = interval_text(float(apart.mean()), *map(float, ends[0]), sign="+")
        alike = f"{sum(one == sides[0] for one in sides[1:])} of {len(OTHER)}"
        rows.append([f"{each.name}: {each.difference}", f"{decides:.2%}", shown, SIDES[sides[0]], alike])
    return markdown_table(["difference", "level", "interval", "it lies", "other draws alike"], rows)


def main(
    folder: RunsFolder = HERE, first: bool = False, level: float | None = None, resamples: int | None = None
) -> None:
    """Print the table."""
    typer.echo(summary(read_experiment(folder) if first else required_replication(folder), level, resamples))


if __name__ == "__main__":
    run_script(main)
