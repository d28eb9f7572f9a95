"""The runs of recombination_tasks_mechanisms with other seeds that are runs of this experiment too.

    python experiments/recombination_tasks/same_runs.py

takes the rows of the arms that both have from that folder's replication.csv, and writes them to the one of this folder.
Configs and seeds are the same there, to their digests, so that they are not trained twice.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import typer

from dcinterp.evidence.script import run_script
from dcinterp.evidence.verdicts import replication
from dcinterp.support.errors import UserError
from dcinterp.support.whole_files import whole
from dcinterp.train.control.experiment import REPLICATION
from dcinterp.train.control.experiment_file import read_experiment

HERE = Path(__file__).parent
OTHER = HERE.parent / "recombination_tasks_mechanisms" / REPLICATION


def shared_rows(other: pd.DataFrame, arms: list[str], columns: list[str]) -> pd.DataFrame:
    """The rows of some arms, with the columns of another table.

    Raises:
        UserError: an arm has no row, or one of the columns is not there.
    """
    missing = [f"column {each}" for each in columns if each not in other] + [
        f"arm {each}" for each in arms if each not in set(other["arm"])
    ]
    if missing:
        raise UserError(f"{OTHER} has no {', no '.join(missing)}, so its runs are not those of {HERE.name}.")
    return other.loc[other["arm"].isin(arms), columns]


def main() -> None:
    """Write the table, and read it as the page does, which refuses a run of another config."""
    if not OTHER.is_file():
        raise UserError(f"There is no {OTHER} yet: `dcinterp experiment run` as in its protocol.md makes it.")
    experiment = read_experiment(HERE)
    columns = list(pd.read_csv(experiment.table, nrows=0).columns)
    rows = shared_rows(pd.read_csv(OTHER), list(experiment.arms), columns)
    with whole(HERE / REPLICATION) as file:
        rows.to_csv(file, index=False)
    replication(experiment)
    typer.echo(f"{len(rows)} runs are in {HERE / REPLICATION}.")


if __name__ == "__main__":
    run_script(main)
