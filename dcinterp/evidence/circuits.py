"""The circuits of the models of any experiment on a puzzle, arm by arm and seed by seed.

    print(circuits_text(Path("experiments/birth"), table=Path("again.csv")))

Some experiments have a script of their own, circuits.py, which keeps the same table and says more.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from dcinterp.evidence.arm_circuits import NEUTRAL, TABLE, summary
from dcinterp.evidence.questions import asked_of
from dcinterp.evidence.trained_models import measure_missing, trained_models
from dcinterp.support.errors import require_known
from dcinterp.train.control.experiment import reported_runs
from dcinterp.train.control.experiment_file import read_experiment


def circuits_text(
    folder: Path, table: Path | None = None, arms: Sequence[str] | None = None, said: Callable[[str], None] = print
) -> str:
    """Measure the models that circuits.csv lacks, and say which edges carry the questions, as Markdown.

    Args:
        folder: of the experiment, or its file.
        table: another table of its runs; what is measured is kept in a folder of its name beside it.
        arms: whose models are measured and told; None for all.
        said: called with a line after each model.

    Raises:
        UserError: the experiment has no questions or no such arm, the table is not there, or no model is.
    """
    experiment = read_experiment(folder)
    asked, told = asked_of(experiment), list(dict.fromkeys(arms or experiment.arms))
    for arm in told:
        require_known("arm", arm, experiment.arms)
    trained = trained_models(experiment.folder, experiment.folder, table)
    measure = partial(asked.measure, trained.experiment)
    rows = measure_missing(trained.experiment, told, trained.place / TABLE, measure, said)
    options = ["--table", str(table)] if table else []
    options += [word for arm in arms or () for word in ("--arm", arm)]
    command = shlex.join(["dcinterp", "experiment", "circuits", str(folder), *options])
    text = summary(rows, trained.experiment, asked.changes, command, note=NEUTRAL)
    runs = reported_runs(trained.experiment)
    measured = set(zip(rows["arm"], rows["seed"], strict=True))
    asked_for = ((arm, int(seed)) for arm, seed in zip(runs["arm"], runs["recipe.seed"], strict=True) if arm in told)
    gone = sum(run not in measured for run in asked_for)
    if not gone:
        return text
    return f"{text}\nThe models of {gone} more run{'s' * (gone != 1)} are not there, and were not asked.\n"
