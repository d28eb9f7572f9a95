"""What is measured of the trained models of an experiment, a seed at a time, in a table that resumes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeAlias

import pandas as pd
import torch
import typer
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.checkpoints.load import load
from dcinterp.support.errors import UserError
from dcinterp.support.table_files import write_table
from dcinterp.train.control.experiment import FINAL, Experiment, joined, reported_runs
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.control.run_lock import adding_to
from dcinterp.train.control.seeds import seeds_text
from dcinterp.train.control.sweep import read_results
from dcinterp.train.data.batches import answers_right
from dcinterp.train.data.puzzle_source import PuzzleSource

DIGEST = "digest"
"""The column that says of what config the model was, as in the table of the runs."""

CHECKED = 256
"""Documents of each part of a puzzle by whose answers a model is told to have learnt it."""


def measure_missing(
    experiment: Experiment,
    arms: Sequence[str],
    table: Path,
    measure: Callable[[str, Path], Sequence[dict[str, Any]]],
    said: Callable[[str], None],
) -> pd.DataFrame:
    """The rows of every model of some arms that was measured; those that the table lacks are measured and added to it.

    Rows stay where their model is no longer there. Those of a model that was made with another config are left out,
    and it is measured anew; those without a digest are believed. Several processes may add to one table.

    Args:
        experiment: whose reported runs have models in its output folder; of each arm those that count.
        arms: the arms.
        table: the csv file of this measurement; its first columns are the arm and the seed.
        measure: makes the rows of a model, from its arm and its folder.
        said: called with a line after each model.

    Raises:
        UserError: no run has ended, one was made with another config, no model of the arms is there, nor any row, or
            the table is none of what was measured.
    """
    runs = reported_runs(experiment)
    rows = _measured_of(runs, table)
    for run in runs[runs["arm"].isin(arms)].to_dict("records"):
        arm, seed, model = run["arm"], int(run["recipe.seed"]), experiment.output / run["name"] / "model"
        if model.is_dir() and not ((rows["arm"] == arm) & (rows["seed"] == seed)).any():
            made = {DIGEST: run[DIGEST]} if isinstance(run.get(DIGEST), str) else {}
            found = pd.DataFrame([{"arm": arm, "seed": seed} | row | made for row in measure(arm, model)])
            with adding_to(table):
                # Also those of runs that are out of their table for the moment: they may have taken hours.
                kept = _measured(table) if table.is_file() else rows
                write_table(joined(kept[(kept["arm"] != arm) | (kept["seed"] != seed)], found), table)
                rows = _measured_of(runs, table)
            said(f"{arm}, seed {seed}: measured")
    rows = rows[rows["arm"].isin(arms)].drop(columns=DIGEST, errors="ignore")
    if not len(rows):
        _drop_if_empty(table.parent)
        raise UserError(_none_there(experiment, arms, runs))
    return rows


def _none_there(experiment: Experiment, arms: Sequence[str], runs: pd.DataFrame) -> str:
    """That no model is there, and the ways out."""
    place, options = experiment.output, " --keep-search" * bool(experiment.tuning_keys)
    if not experiment.has_own_table:
        options += f" --seeds {seeds_text(sorted({*runs['recipe.seed'].astype(int)}))}"
    said = f"There are no trained models of {', '.join(arms)} in {place.resolve()}, as seen from the working folder"
    named = re.compile(rf"{re.escape(experiment.table.stem)}-[0-9a-f]{{8}}")
    beside = place.parent.iterdir() if place.parent.is_dir() and not experiment.has_own_table else ()
    if elsewhere := sorted(each for each in beside if each.is_dir() and each != place and named.fullmatch(each.name)):
        said += f". If the table was moved, its runs may be in {' or '.join(map(str, elsewhere))}; move them to {place}"
    return (
        f"{said}; give this from where they were trained, or train some with dcinterp experiment run "
        f"{experiment.folder}{options} --table NEW.csv, a file that is not there yet, and ask those with --table "
        "NEW.csv."
    )


def _drop_if_empty(folder: Path) -> None:
    """Take away the folder that was made for what was to be measured, where nothing was."""
    with suppress(OSError):  # it is not empty
        folder.rmdir()


def read_measured(table: Path) -> pd.DataFrame:
    """What was measured of trained models, a row or more a model; names of arms such as 1 or None are text.

    Raises:
        UserError: it is no table, or has no column arm or seed.
    """
    return _measured(table).drop(columns=DIGEST, errors="ignore")


def measured_of(experiment: Experiment, table: Path) -> pd.DataFrame:
    """As `read_measured`, without what was measured of models that were made anew since, with another config.

    No rows where there is no table.

    Raises:
        UserError: as `read_measured` and `reported_runs`.
    """
    return _measured_of(reported_runs(experiment), table).drop(columns=DIGEST, errors="ignore")


def _measured(table: Path) -> pd.DataFrame:
    give = "it is none of what was measured of trained models, so move it away"
    text = {"arm": str, DIGEST: str}
    return read_results(table, ("arm", "seed"), give, dtype=text, keep_default_na=False, na_values=[""])


def _measured_of(runs: pd.DataFrame, table: Path) -> pd.DataFrame:
    """The rows of a table, if it is there, but for those of runs that are not reported, or were made anew since.

    One that was made anew has another config.
    """
    if not table.is_file():
        return pd.DataFrame(columns=["arm", "seed"])
    rows = _measured(table)
    reported = {(arm, int(seed)) for arm, seed in zip(runs["arm"], runs["recipe.seed"], strict=True)}
    there = [(arm, int(seed)) in reported for arm, seed in zip(rows["arm"], rows["seed"], strict=True)]
    rows = rows[pd.Series(there, index=rows.index, dtype=bool)]
    if DIGEST not in rows or DIGEST not in runs:
        return rows
    now = {
        (arm, int(seed)): made for arm, seed, made in zip(runs["arm"], runs["recipe.seed"], runs[DIGEST], strict=True)
    }
    of = ((now.get((arm, seed)), made) for arm, seed, made in zip(rows["arm"], rows["seed"], rows[DIGEST], strict=True))
    same = [not (isinstance(want, str) and isinstance(made, str)) or want == made for want, made in of]
    return rows[pd.Series(same, index=rows.index, dtype=bool)]


def measured_before(trained: TrainedModels, name: str, script: str, folder: Path, table: Path | None) -> pd.DataFrame:
    """`measured_of` what another script keeps, which a script reads that measures nothing.

    Args:
        trained: whose models they are.
        name: of the file.
        script: which makes it.
        folder, table: as they were given, for the message.

    Raises:
        UserError: it was not given yet, or as `measured_of`.
    """
    if not (file := trained.place / name).is_file():
        _drop_if_empty(trained.place)
        asked = f"--folder {folder}" + ("" if table is None else f" --table {table}")
        raise UserError(f"There is no {file}; {script} {asked} makes it.")
    return measured_of(trained.experiment, file)


def with_all_arms(rows: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
    """What was measured of the seeds of which every arm has a model, as differences are taken seed by seed.

    Raises:
        UserError: there is no such seed.
    """
    arms = rows.groupby("seed")["arm"].agg(set)
    whole = arms.index[[set(experiment.arms) <= each for each in arms]]
    if not len(whole):
        raise UserError(f"No seed of {experiment.folder} has a trained model of every arm that could be asked.")
    return rows[rows["seed"].isin(whole)]


def print_text(text: str, file: Path) -> None:
    """Print Markdown, also to a file of an experiment's folder, which its page reads."""
    file.write_text(text, encoding="utf-8")
    typer.echo(text)


RunsTable: TypeAlias = Annotated[
    Path | None,
    typer.Option("--table", help="Another table of runs; what is measured gets a folder beside it.", metavar="FILE"),
]
"""The option of a script that measures models: those of other seeds, for example."""

RunsFolder: TypeAlias = Annotated[Path, typer.Option("--folder", help="Folder of the experiment.")]
"""The option of a script that serves several experiments."""


@dataclass(frozen=True)
class TrainedModels:
    """Whose models a script measures, and where what it finds is kept.

    experiment: with the table of the runs. place: a folder. options: what the command that makes it again needs
    besides, with a space before it.
    """

    experiment: Experiment
    place: Path
    options: str


class Summary(Protocol):
    """Makes Markdown of what was measured: its rows, the experiment, and options of the command that makes it again."""

    def __call__(self, rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str: ...


def print_measured(
    trained: TrainedModels,
    table: str,
    text_file: str,
    measure: Callable[[Experiment, str, Path], Sequence[dict[str, Any]]],
    summary: Summary,
    arms: Sequence[str] | None = None,
) -> None:
    """Measure the models that a table lacks, and print what is made of all, also to a file.

    Args:
        trained: of which models, and where it is kept.
        table, text_file: names of the table and of the file.
        measure: makes the rows of a model, from its experiment, its arm and its folder.
        summary: makes the text.
        arms: whose models are measured; None for all.

    Raises:
        UserError: no model is there, nor any row.
    """
    experiment, said = trained.experiment, partial(typer.echo, err=True)
    of = list(experiment.arms) if arms is None else arms
    rows = measure_missing(experiment, of, trained.place / table, partial(measure, experiment), said)
    print_text(summary(rows, experiment=experiment, options=trained.options), trained.place / text_file)


def trained_models(folder: Path, own: Path, table: Path | None = None) -> TrainedModels:
    """The models of an experiment, or those of another table of its runs.

    Args:
        folder: of the experiment.
        own: the folder that the script asks by itself.
        table: what was measured of its runs is kept in a folder of its name beside it.

    Raises:
        UserError: the experiment cannot be read, or the table is not there, or has a name without an ending.
    """
    if table is None:
        return TrainedModels(read_experiment(folder), folder, folder_option(folder, own))
    if not table.is_file():
        raise UserError(f"There is no table {table}; dcinterp experiment run {folder} --table {table} makes it.")
    if (place := table.with_suffix("")) == table:
        raise UserError(f"The table {table} needs an ending, such as {table}.csv: a folder without it is made beside.")
    experiment = read_experiment(folder, table=table)
    place.mkdir(exist_ok=True)
    inside = table.resolve().parent == folder.resolve()
    named = f"experiments/{folder.name}/{table.name}" if inside else table.name
    return TrainedModels(experiment, place, f"{folder_option(folder, own)} --table {named}")


def folder_option(folder: Path, own: Path) -> str:
    """What a script's command needs besides, with a space before it, where it is not asked about its own folder."""
    return "" if folder.resolve() == own.resolve() else f" --folder experiments/{folder.name}"


def open_trained(experiment: Experiment, arm: str, model: Path) -> tuple[Bridge, PuzzleSource]:
    """A trained model of an arm, and the documents of the puzzle that it is asked."""
    puzzle = experiment.run(FINAL, arm, {}, 0).config.data.puzzle
    return load(str(model)), PuzzleSource(puzzle, model, makes=False)


def accuracy_by_part(bridge: Bridge, source: PuzzleSource, parts: Sequence[str]) -> dict[str, float]:
    """{part: share of right answers} in `CHECKED` documents of each, by which a model is told to have learnt it."""
    return {part: round(right_answers(bridge, source.held_out(part, CHECKED)), 4) for part in parts}


@torch.no_grad()
def right_answers(bridge: Any, documents: dict[str, Tensor]) -> float:
    """The share of answers right in every token, of documents as `PuzzleSource` gives them (`input_ids`, `labels`)."""
    guesses, labels = bridge(documents["input_ids"]).argmax(-1)[:, :-1], documents["labels"][:, 1:]
    right = answers_right(guesses, labels)
    return sum(right) / len(right)
