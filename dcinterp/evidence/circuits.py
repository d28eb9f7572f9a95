"""The circuits of the models of any experiment on a puzzle, arm by arm and seed by seed.

    print(circuits_text(Path("experiments/birth"), table=Path("again.csv")))

An experiment with hypotheses about edges has a script of its own, circuits.py, which keeps the same table.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from dcinterp.evidence.arm_circuits import TABLE, summary
from dcinterp.evidence.questions import asked_of
from dcinterp.evidence.trained_models import measure_missing, trained_models
from dcinterp.support.errors import require_known


def circuits_text(
    folder: Path, table: Path | None = None, arms: Sequence[str] | None = None, said: Callable[[str], None] = print
) -> str:
    """Measure the models that circuits.csv lacks, and say which edges carry the questions, as Markdown.

    Args:
        folder: of the experiment.
        table: another table of its runs; what is measured is kept in a folder of its name beside it.
        arms: whose models are measured; None for all.
        said: called with a line after each model.

    Raises:
        UserError: the experiment has no questions or no such arm, the table is not there, or no model is.
    """
    trained = trained_models(folder, folder, table)
    experiment, asked = trained.experiment, asked_of(trained.experiment)
    for arm in arms or ():
        require_known("arm", arm, experiment.arms)
    measure = partial(asked.measure, experiment)
    rows = measure_missing(experiment, arms or list(experiment.arms), trained.place / TABLE, measure, said)
    only = "".join(f" --arm {shlex.quote(arm)}" for arm in arms or ())
    command = f"dcinterp experiment circuits experiments/{experiment.folder.name}"
    return summary(rows, experiment, asked.changes, command, f"{trained.options}{only}")
