"""Runs of another experiment that are runs of this one too.

    python experiments/recombination_tasks/same_runs.py

takes the rows of the arms that both have from replication.csv of recombination_tasks_mechanisms, and writes them to
replication.csv of this folder; with --source, --folder and --table the tables are others. Configs and seeds of the rows
are the same in both, to their digests, so that they are not trained twice; else nothing is written.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from dcinterp.evidence.script import run_script
from dcinterp.support.errors import UserError
from dcinterp.support.whole_files import whole
from dcinterp.train.control.experiment import REPLICATION, Experiment, read_table
from dcinterp.train.control.experiment_file import read_experiment

HERE = Path(__file__).parent
SOURCE = HERE.parent / "recombination_tasks_mechanisms" / REPLICATION
EVERY = ("stage", "arm", "name", "status", "digest", "recipe.seed")
"""Columns without which a row cannot be told to be the same run."""


def shared_rows(source: Path, experiment: Experiment) -> pd.DataFrame:
    """The rows of a table whose arms an experiment has, if they are runs of it.

    Raises:
        UserError: there is no such table or no such row, or one that was made with another config.
    """
    if not source.is_file():
        raise UserError(f"There is no {source} yet: `dcinterp experiment run` as in its protocol.md makes it.")
    rows = read_table(replace(experiment, table=source))
    rows = rows[rows["arm"].isin(experiment.arms) & (rows["status"] == "done")]
    if not len(rows) or not set(EVERY) <= set(rows):
        raise UserError(f"{source} has no run of {', '.join(experiment.arms)} with its digest.")
    seeds = tuple(sorted(set(rows.loc[rows["stage"] == "final", "recipe.seed"].astype(int))))
    with_seeds = replace(experiment, table=source, seeds=seeds)
    runs = [*with_seeds.tuning_runs(), *with_seeds.final_runs(rows)]
    with_seeds.require_config(runs, rows)
    if strange := sorted(set(rows["name"]) - {run.name for run in runs}):
        raise UserError(f"{source} has {strange[0]!r}, which is no run of {experiment.folder}.")
    return rows.dropna(axis=1, how="all")


def main(
    source: Annotated[Path, typer.Option(help="Table of the runs that are there.")] = SOURCE,
    folder: Annotated[Path, typer.Option(help="Folder of the experiment that they are runs of too.")] = HERE,
    table: Annotated[Path | None, typer.Option(help="Table to write, which must not be there yet.")] = None,
) -> None:
    """Write the table."""
    table = folder / REPLICATION if table is None else table
    if table.exists():
        raise UserError(f"{table} is there already; move it away.")
    rows = shared_rows(source, read_experiment(folder))
    with whole(table) as file:
        rows.to_csv(file, index=False)
    typer.echo(f"{len(rows)} runs are in {table}.")


if __name__ == "__main__":
    run_script(main)
