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
from dcinterp.support.table_files import write_table
from dcinterp.train.control.experiment import FINAL, REPLICATION, SEEDED, Experiment, read_table
from dcinterp.train.control.experiment_file import read_experiment

HERE = Path(__file__).parent
SOURCE = HERE.parent / "recombination_tasks_mechanisms" / REPLICATION


def shared_rows(theirs: Experiment, ours: Experiment) -> pd.DataFrame:
    """The rows of an experiment's table that are runs of another one too, once all of its runs have ended.

    Raises:
        UserError: a run is missing or failed, has no digest, or is of another config in ours.
    """
    rows = read_table(theirs)
    if "digest" not in rows or rows["digest"].isna().any():
        raise UserError(f"{theirs.table} has runs without a digest, so that they cannot be told apart.")
    seeds = tuple(sorted(set(rows.loc[rows["stage"] == FINAL, SEEDED[0]].astype(int))))
    ended = set(rows.loc[rows["status"] == "done", "name"])
    missing = [run.name for run in replace(theirs, seeds=seeds).final_runs(rows) if run.name not in ended]
    if missing or len(seeds) < len(theirs.seeds):
        lacks = repr(missing[0]) if missing else f"seeds: it has {len(seeds)} of {len(theirs.seeds)}"
        raise UserError(f"{theirs.table} lacks {lacks}; all runs must have ended.")
    rows = rows[rows["arm"].isin(ours.arms)]
    ours = replace(ours, table=theirs.table, seeds=seeds)
    runs = [*ours.tuning_runs(), *ours.final_runs(rows)]
    ours.require_config(runs, rows)
    if strange := sorted(set(rows["name"]) - {run.name for run in runs}):
        raise UserError(f"{theirs.table} has {strange[0]!r}, which is no run of {ours.folder}.")
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
    if not source.is_file():
        raise UserError(f"There is no {source} yet: `dcinterp experiment run` as in its protocol.md makes it.")
    rows = shared_rows(read_experiment(source.parent, table=source), read_experiment(folder))
    write_table(rows, table)
    typer.echo(f"{len(rows)} runs are in {table}.")


if __name__ == "__main__":
    run_script(main)
