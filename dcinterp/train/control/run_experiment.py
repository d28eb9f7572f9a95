"""Run an experiment: the search of every arm, then its reported runs, into the experiment's table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from dcinterp.support.cluster import require_own_jobs
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress
from dcinterp.support.table_files import write_table
from dcinterp.train.control.engines import LOCAL
from dcinterp.train.control.experiment import (
    DIVERGED,
    ENDED,
    FINAL,
    REPLICATION,
    TUNING,
    Experiment,
    digest,
    joined,
    read_table,
)
from dcinterp.train.control.run_lock import lock_run
from dcinterp.train.control.seeds import seeds_text
from dcinterp.train.control.sweep import TABLE, Sweep, SweepRun, file_name, run_sweep
from dcinterp.train.loop.metrics_file import MADE_WITH

LOCK = ".experiment"
MOST_NAMED = 20
"""Of runs that failed, in a message."""


class RunsFailed(UserError):
    """Runs failed; the others ended, and are in the table."""


def run_experiment(
    experiment: Experiment,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    seeds: tuple[int, ...] = (),
    engine: str = LOCAL,
    keep_search: bool = False,
    blind: bool = False,
) -> pd.DataFrame:
    """Run what is not in the table yet, tuning first, and return the table.

    Args:
        experiment: what `read_experiment` gave.
        jobs: runs at a time; one when None, and on a cluster that runs already as many as it has.
        progress: called as runs end; raising `Cancelled` stops the others, which go on at the next call.
        seeds: other seeds than the file's, to repeat the experiment in a table of its own; by default those that the
            file plans, in the table of the repetition.
        engine: where the runs run, as `run_sweep` has it.
        keep_search: for another table than the experiment's own: do not search again, but take its rows of the search.
        blind: tell of running ones their steps alone, and no loss.

    Raises:
        RunsFailed: runs failed; the others ended, and are in the table.
        UserError: other seeds would join the experiment's own table, were tuned on, or are none that the file plans for
            its repetition; there is no other table for `keep_search`; a row of the table was made with another config;
            or another process runs the experiment into this table.
    """
    if keep_search and experiment.has_own_table:
        raise UserError("--keep-search fills another table with what the search chose for this one; give --table.")
    if seeds and experiment.has_own_table:
        raise UserError("Other seeds need a table of their own, since the file says which are reported; give --table.")
    if set(seeds) & set(experiment.tuning_seeds):
        raise UserError(f"{sorted(set(seeds) & set(experiment.tuning_seeds))} are seeds of the search; give others.")
    require_own_jobs(engine, jobs)
    experiment = replace(experiment, seeds=_seeds_of(experiment, seeds))
    run = partial(_run_missing, experiment, jobs=jobs, progress=progress, engine=engine, blind=blind)
    experiment.output.mkdir(parents=True, exist_ok=True)
    # Of the runs, and of the table: from another working folder the same table would have runs elsewhere.
    table, way_out = experiment.table, "give another --table"
    table.parent.mkdir(parents=True, exist_ok=True)
    with (
        lock_run(experiment.output, file=LOCK, way_out=way_out),
        lock_run(table.parent, file=f".{table.name}.lock", way_out=way_out),
    ):
        if keep_search:
            _take_search(experiment)
        run(experiment.tuning_runs(), TUNING)
        return run(experiment.final_runs(read_table(experiment)), FINAL)


def _seeds_of(experiment: Experiment, given: tuple[int, ...]) -> tuple[int, ...]:
    """The seeds of the reported runs, checked before any of them is trained: a page takes no others."""
    table, planned = experiment.table, experiment.again_seeds
    if table.name == REPLICATION and not experiment.is_repetition and not table.is_file():
        raise UserError(
            f"{table} has the name of the table that the page shows, and is not in {experiment.folder}; give --table "
            f"{shlex.quote(str(experiment.folder / REPLICATION))}, or another name."
        )
    if not experiment.is_repetition:
        return given or experiment.seeds
    seeds = given or planned
    if not seeds:
        rows = read_table(experiment)
        there = rows.loc[rows["stage"] == FINAL, "recipe.seed"] if len(rows) else ()
        which = f"such as those that it has, {seeds_text(sorted({*map(int, there)}))}" if len(there) else ""
        raise UserError(f"{table} is for other seeds; give --seeds, {which or f'such as {experiment.fresh_seeds()}'}.")
    if same := sorted({*seeds} & {*experiment.seeds}):
        raise UserError(
            f"{table} is for other seeds than the file's, which are in {TABLE}; give --seeds without {same[0]}."
        )
    if planned and (other := sorted({*seeds} - {*planned})):
        raise UserError(
            f"`again` of the file plans the seeds {seeds_text(planned)} for {table}, without {other[0]}; give those, "
            "or another --table."
        )
    return seeds


def _take_search(experiment: Experiment) -> None:
    """Put the search's rows of the experiment's own table into its other one, where they are not there yet."""
    own, there = read_table(replace(experiment, table=experiment.folder / TABLE)), read_table(experiment)
    rows = own[(own["stage"] == TUNING) & ~own["name"].isin(there["name"])]
    if len(rows):
        write_table(joined(rows, there), experiment.table)


def _run_missing(
    experiment: Experiment,
    runs: list[SweepRun],
    stage: str,
    *,
    jobs: int | None,
    progress: Progress | None,
    engine: str,
    blind: bool,
) -> pd.DataFrame:
    before = read_table(experiment)
    done = set(before.loc[before["status"].isin(ENDED), "name"])
    experiment.require_config(runs, before)
    missing = tuple(run for run in runs if run.name not in done)
    if missing:
        place = experiment.output / stage
        join = partial(_join, experiment, stage, missing)
        known = [run for run in (*experiment.tuning_runs(), *runs) if run.name in done]
        rows = run_sweep(
            Sweep(place, missing, jobs or 1),
            progress=progress,
            engine=engine,
            blind=blind,
            written=join,
            beside=[Path(run.config.output) for run in known],
        )
        # A run of the search that diverged has the worst value; of a reported one somebody must be told.
        require_ended(_with_diverged(rows) if stage == TUNING else rows, experiment.table, place)
    return read_table(experiment)


def _with_diverged(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with a status of their own for runs that diverged: they have ended, and none is made again."""
    from dcinterp.train.loop.divergence import NOT_FINITE  # brings all of transformers

    diverged = (rows["status"] == "failed") & rows["message"].fillna("").str.contains(NOT_FINITE, regex=False)
    return rows.assign(status=rows["status"].where(~diverged, DIVERGED))


def require_ended(rows: pd.DataFrame, kept: Path, logs: Path) -> None:
    """Name the first of the runs of a sweep that failed.

    Args:
        rows: the table of the sweep.
        kept: where the runs that ended are.
        logs: the folder of their logs.

    Raises:
        RunsFailed: there is one.
    """
    failed = rows[rows["status"] == "failed"]
    if len(failed):
        first, *others = failed.to_dict("records")
        also = f"; the others are {', '.join(str(each['name']) for each in others[:MOST_NAMED])}" if others else ""
        more = ", ..." if len(others) > MOST_NAMED else ""
        raise RunsFailed(
            f"{len(failed)} of {len(rows)} runs failed, such as {first['name']} ({first['message']}){also}{more}. What "
            f"ended is kept in {kept}, and the logs are in {logs}."
        )


def _join(experiment: Experiment, stage: str, runs: Sequence[SweepRun]) -> None:
    """Put the finished rows of a sweep into the table of the experiment."""
    made = experiment.output / stage / TABLE
    if not made.is_file():
        return
    # A commit such as 0123456e7890 is text.
    rows = _with_diverged(pd.read_csv(made, dtype=dict.fromkeys(MADE_WITH, str)))
    digests = {run.name: digest(run) for run in runs}
    ended = rows["status"].isin(ENDED) & rows["name"].isin(digests)
    rows = rows[ended].drop(columns=["message"])
    if not len(rows):
        return
    before = read_table(experiment)
    arms = {file_name(arm): arm for arm in experiment.arms}
    rows.insert(0, "arm", [arms[name.split(",")[1]] for name in rows["name"]])
    rows.insert(0, "stage", stage)
    rows["digest"] = [digests[name] for name in rows["name"]]
    kept = before[~before["name"].isin(rows["name"])]
    write_table(joined(kept, rows), experiment.table)
