"""The reported seeds of an experiment again, with one learning rate for all arms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dcinterp.evidence.intervals import differences
from dcinterp.support.errors import UserError
from dcinterp.support.progress import console
from dcinterp.support.table_files import write_table
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import FINAL, Experiment, digest, digests, joined, read_table
from dcinterp.train.control.run_experiment import require_ended
from dcinterp.train.control.run_lock import adding_to
from dcinterp.train.control.sweep import Sweep, SweepRun, run_sweep

KEY = "recipe.learning_rate"


def all_runs(experiment: Experiment, extra: pd.DataFrame) -> pd.DataFrame:
    """The runs of the experiment's table that are not of its search, and those that were added, by name."""
    table = read_table(experiment)
    return pd.concat([table[table["stage"] == FINAL], extra]).set_index("name")


def train_all(experiment: Experiment, rates: Sequence[float], table: Path, jobs: int) -> pd.DataFrame:
    """The table of the runs that were added, with those of all reported seeds at these rates, rate by rate."""
    extra = pd.DataFrame({"name": []})
    for rate in rates:
        for seed in experiment.seeds:
            extra = train_missing(experiment, rate, seed, table, jobs)
    return extra


def train_missing(experiment: Experiment, rate: float, seed: int, table: Path, jobs: int) -> pd.DataFrame:
    """The table of the runs that were added, with those of this rate and seed.

    Raises:
        RunsFailed: runs failed; the others are in the table.
        UserError: the experiment's own table has one that was made with another config.
    """
    wanted = [(arm, experiment.run(FINAL, arm, {KEY: rate}, seed)) for arm in experiment.arms]
    experiment.require_config([run for _, run in wanted], read_table(experiment))
    extra = _added(table, [run for _, run in wanted])
    done = all_runs(experiment, extra).index
    runs = {run.name: (arm, run) for arm, run in wanted if run.name not in done}
    if runs:
        sweep = Sweep(experiment.output / f"rate={rate:g},seed={seed}", tuple(run for _, run in runs.values()), jobs)
        with console(f"rate {rate:g}, seed {seed}") as progress:
            ended = run_sweep(sweep, progress=progress)
        rows = ended[ended["status"] == "done"]
        rows.insert(0, "arm", [runs[name][0] for name in rows["name"]])
        rows = rows.reindex(columns=["name", "arm", KEY, "recipe.seed", *experiment.measures, "loss"])
        rows["digest"] = [digest(runs[name][1]) for name in rows["name"]]
        with adding_to(table):
            extra = _added(table, [run for _, run in runs.values()])
            extra = joined(extra[~extra["name"].isin(rows["name"])], rows)
            write_table(extra, table)
        require_ended(ended, table, sweep.output)
    return extra


def _added(table: Path, runs: Sequence[SweepRun]) -> pd.DataFrame:
    """The rows that were added so far, but for those of these runs that were made with another config.

    Rows without a digest are believed.
    """
    if not table.is_file():
        return pd.DataFrame({"name": []})
    rows, now = pd.read_csv(table, dtype={"digest": str}), {run.name: digests(run) for run in runs}
    if "digest" not in rows:
        return rows
    of = zip(rows["name"], rows["digest"], strict=True)
    return rows[[not isinstance(made, str) or made in now.get(name, [made]) for name, made in of]]


def at_rate(experiment: Experiment, rate: float, runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """{measure: [seed, arm]} at a rate.

    Raises:
        UserError: runs are missing.
    """
    names = [experiment.run(FINAL, arm, {KEY: rate}, seed).name for arm in experiment.arms for seed in experiment.seeds]
    if not set(names) <= set(runs.index):
        raise UserError(f"Runs at {rate:g} are missing; run it again.")
    rows = runs.loc[names]
    return {each: rows.pivot_table(index="recipe.seed", columns="arm", values=each) for each in experiment.measures}


def tables_of(experiment: Experiment, values: dict[str, pd.DataFrame]) -> str:
    """The means of the arms, and the differences that the hypotheses are about, as Markdown; values as of `at_rate`."""
    body = [[arm, *(f"{each[arm].mean():.3f}" for each in values.values())] for arm in experiment.arms]
    apart = "\n".join(f"- as in {name}: {each}" for name, each in differences(experiment, values).items())
    return f"{markdown_table(['arm', *experiment.measures.values()], body)}\n\n{apart}"
