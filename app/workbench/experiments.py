"""The experiments that come with dcinterp, and those of the folder where the app was started."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import streamlit as st

from dcinterp.analysis.training.edge_starts import CURVES
from dcinterp.evidence.arm_circuits import TABLE as CIRCUITS
from dcinterp.evidence.motifs import COLUMNS as COLUMNS_OF_WAYS
from dcinterp.evidence.motifs import motif_rows, motifs, not_looked_into
from dcinterp.evidence.page import more_of, search_notes
from dcinterp.evidence.verdicts import COLUMNS, replication, verdict_lines, verdict_rows
from dcinterp.support.errors import UserError
from dcinterp.train.control.experiment import PROTOCOL, REPLICATION, Experiment
from dcinterp.train.control.experiment_file import find_experiments, read_experiment
from dcinterp.train.control.sweep import TABLE
from workbench import analyses
from workbench.markdown import sentence, without_pictures

FIRST = "recombination"
T = TypeVar("T")


def found() -> dict[str, Experiment]:
    """Every experiment whose file can be read, by the name of its folder, those with runs first; of others a line."""
    folders = find_experiments()
    return _read(folders, tuple(str(folder.resolve()) for folder in folders.values()))


@st.cache_data(ttl=60, show_spinner=False)
def _read(_folders: dict[str, Path], where: tuple[str, ...]) -> dict[str, Experiment]:
    """Kept for the places that the folders are at, so that a new one is there at once."""
    read = {}
    for name, folder in _folders.items():
        try:
            read[name] = read_experiment(folder)
        except UserError as problem:
            st.warning(sentence(problem), icon=":material/warning:")
    return dict(sorted(read.items(), key=lambda item: (not item[1].table.is_file(), item[0] != FIRST, item[0])))


@st.cache_data(ttl=60, show_spinner="Comparing the arms of all experiments")
def every_verdict(_experiments: Iterable[Experiment], tables: tuple[tuple[str, float], ...]) -> pd.DataFrame:
    """The hypotheses of all experiments, the longest column last; kept for a minute, or until a table changes."""
    experiment, hypothesis, asks, found, verdict, again = COLUMNS
    rows = pd.DataFrame(_of_each(_experiments, verdict_rows), columns=list(COLUMNS))
    return rows[[experiment, hypothesis, verdict, found, again, asks]]


@st.cache_data(ttl=60, show_spinner="Reading what was measured of the models of all experiments")
def every_way(_experiments: Iterable[Experiment], tables: tuple[tuple[str, float], ...]) -> tuple[pd.DataFrame, str]:
    """Which ways return over seeds, beside the arms, and what was not looked into; kept as `every_verdict`."""
    ways = _of_each(_experiments, motifs)
    experiment, arm, learnt, asked, largest, alike = COLUMNS_OF_WAYS
    rows = pd.DataFrame(motif_rows(ways), columns=list(COLUMNS_OF_WAYS))
    return rows[[experiment, arm, largest, alike, asked, learnt]], not_looked_into(ways)


def _of_each(experiments: Iterable[Experiment], make: Callable[[list[Experiment]], list[T]]) -> list[T]:
    """The rows of all experiments; of one that has none because its table is not right, a line says what is wrong."""
    rows = list[T]()
    for experiment in experiments:
        try:
            rows += make([experiment])
        except UserError as problem:
            st.warning(sentence(problem), icon=":material/warning:")
    return rows


def tables(experiments: Collection[Experiment]) -> tuple[tuple[str, float], ...]:
    """The tables of runs and of what was measured of models, those of repetitions too, and when they were written."""
    files = [file for each in experiments for file in (each.table, each.folder / REPLICATION)]
    files += [place / CIRCUITS for each in experiments for place in (each.folder, each.replication_folder)]
    series = [each.multiplier for each in experiments if each.multiplier is not None]
    files += [folder / name for each in series for folder in each.beside for name in (TABLE, REPLICATION)]
    return tuple((str(file), file.stat().st_mtime) for file in files if file.is_file())


def lines(experiment: Experiment) -> list[str]:
    """What became of its hypotheses, a line each; kept for a minute, or until its table changes.

    Raises:
        UserError: no run has ended yet.
    """
    return _lines(experiment, str(experiment.folder.resolve()), tables([experiment]), again=False)


def lines_again(experiment: Experiment) -> list[str]:
    """The same of its repetition with other seeds; empty without one, or before a run of every arm has ended."""
    return _lines(experiment, str(experiment.folder.resolve()), tables([experiment]), again=True)


@st.cache_data(ttl=60, show_spinner=False)
def _lines(_experiment: Experiment, folder: str, tables: tuple[tuple[str, float], ...], again: bool) -> list[str]:
    asked = replication(_experiment) if again else _experiment
    return [] if asked is None else verdict_lines(asked)


def about(experiment: Experiment) -> list[str]:
    """What it asks, a paragraph each."""
    return [without_pictures(each) for each in experiment.about]


def limits(experiment: Experiment) -> list[str]:
    """What its numbers do not say, and what its search does not."""
    return [without_pictures(each) for each in (*experiment.limits, *search_notes(experiment))]


def protocol(experiment: Experiment) -> str:
    """The protocol in Markdown, its headings two levels down; empty without one."""
    file = experiment.folder / PROTOCOL
    return _headings_down(file.read_text(encoding="utf-8") if file.is_file() else "", 2)


def _headings_down(text: str, levels: int) -> str:
    text = without_pictures(text)
    return "\n".join(f"{'#' * levels}{line}" if line.startswith("#") else line for line in text.splitlines())


def more(experiment: Experiment) -> str:
    """What other commands of the experiment printed, in Markdown, its headings like the page's; empty without any."""
    return _headings_down("\n\n".join(more_of(experiment)), 1)


def curves(experiment: Experiment) -> dict[int, Any]:
    """{seed: effects of edges over its checkpoints and those of seeds beside it}, where they were measured.

    The seeds of the experiment come first, and then those of its repetition.
    """
    found = dict[int, Any]()
    for folder in (experiment.folder, experiment.replication_folder):
        if (folder / CURVES).is_file():
            try:
                starts = analyses.fresh("edge_starts", experiment=str(folder))
            except UserError as problem:
                st.warning(sentence(problem), icon=":material/warning:")
            else:
                found |= dict.fromkeys(starts.seeds, starts)
    return found


def commands(experiment: Experiment) -> str:
    """What made its numbers, and what repeats it with other seeds."""
    folder = f"experiments/{experiment.folder.name}"
    keep = " --keep-search" if experiment.tuning_keys else ""
    return (
        f"# what made the numbers above; runs that are in the table are not made again\n"
        f"dcinterp experiment run {folder}\n"
        f"dcinterp experiment page {folder}\n"
        f"# the same of other seeds\n"
        f"dcinterp experiment run {folder} --seeds {experiment.fresh_seeds()}{keep} --table again.csv\n"
        f"dcinterp experiment show {folder} --table again.csv"
    )
