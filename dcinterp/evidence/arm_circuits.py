"""Which edges carry a question in the models of every arm that learnt a puzzle, as the command and scripts tell it.

    ask_models(HERE, measure, CHANGES, table)    # HERE: the script's folder; the others are of the puzzle's questions

What is a puzzle's own are prompts that differ in one thing. `dcinterp.evidence.pooled_edges` says what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from dcinterp.evidence.pooled_edges import (
    COLUMNS,
    DESCRIBES,
    EXPLAINED,
    Prompts,
    arm_tables,
    arms_alike,
    change_list,
    pooled_shares,
    with_shares,
)
from dcinterp.evidence.trained_models import (
    TrainedModels,
    accuracy_by_part,
    open_trained,
    print_measured,
    trained_models,
)
from dcinterp.train.control.experiment import Experiment
from dcinterp.train.data.puzzle_source import PuzzleSource

TABLE, TEXT_FILE, DOCUMENTS = "circuits.csv", "more-circuits.md", 64

TESTED = "The hypotheses about some of these groups stand in a section of their own."
"""The note of a page whose experiment has hypotheses about some groups; `DESCRIBES` is that of the others."""
NEUTRAL = "Whether a hypothesis is about some of these groups, the protocol says; these tables judge none."
"""The note where an experiment may have such hypotheses or not."""

PromptsOf: TypeAlias = Callable[[PuzzleSource, int], Mapping[str, Prompts]]
"""Makes {change: prompts} of so many documents of a puzzle's first part."""

TEXT = """## Which edges carry the question in the models that learnt it

Of seeds {first} to {last} {counts} reach {at:.0%} on `{part}` and could be asked. Only these are looked at, so an arm
that learnt it less often is seen by its better models. They are asked the first question of {documents} documents that
training did not read, in which each of the changes below can be made. {explained} *weights* are the dynamic weights of
a stage of composition, made from the residual stream.

    {command}{options}

{changes}

{arms}
"""


def ask_models(
    own: Path,
    measure: Callable[[Experiment, str, Path], list[dict[str, Any]]],
    changes: Mapping[str, str],
    table: Path | None,
    folder: Path | None = None,
    *,
    note: str = DESCRIBES,
) -> TrainedModels:
    """Measure the models that are missing, and print the tables.

    Args:
        own: the folder of the script.
        measure: makes the rows of a model, from its experiment, its arm and its folder, as of the puzzle's questions.
        changes: what the two prompts of each differ in.
        table: another table of runs than the experiment's own, or None.
        folder: of the experiment, where it is not the script's.
        note: whether a hypothesis is about some of the groups, in words (`TESTED`, `DESCRIBES`).

    Returns:
        Whose models they are, and where the tables are.

    Raises:
        UserError: no model is there, nor any row.
    """
    trained = trained_models(folder or own, own, table)
    told = partial(summary, changes=changes, command=f"python experiments/{own.name}/circuits.py", note=note)
    print_measured(trained, TABLE, TEXT_FILE, measure, told)
    return trained


def measure_model(experiment: Experiment, arm: str, model: Path, prompts: PromptsOf) -> list[dict[str, Any]]:
    """A row for every change and group of edges; of a model that has not learnt it, one row with its accuracy."""
    bridge, source = open_trained(experiment, arm, model)
    part = source.puzzle.PARTS[0]
    accuracy = accuracy_by_part(bridge, source, [part])
    if accuracy[part] < experiment.solved_at:
        return [accuracy]
    return [accuracy | {"part": part} | row for row in pooled_shares(bridge, prompts(source, DOCUMENTS))] or [accuracy]


def summary(
    rows: pd.DataFrame,
    experiment: Experiment,
    changes: Mapping[str, str],
    command: str,
    options: str = "",
    *,
    note: str = DESCRIBES,
) -> str:
    """The tables of every arm over seeds, as Markdown.

    command: that makes it again. options: of it. note: as in `ask_models`.
    """
    there = {*with_shares(rows)["change"]}
    able = {change: said for change, said in changes.items() if change in there} if there else changes
    counts, arms = tables_by_arm(rows, list(able))
    void = [f"*{change}*" for change in changes if change not in able]
    if void:
        why = "no document of these options allows it, or it was added since this was measured"
        arms = f"Not asked: {', '.join(void)} ({why}).\n\n{arms}"
    return TEXT.format(
        first=rows["seed"].min(),
        last=rows["seed"].max(),
        counts=counts,
        at=experiment.solved_at,
        part=next((each for each in rows if each not in COLUMNS), experiment.solved_part),
        documents=DOCUMENTS,
        explained=f"{EXPLAINED} {note}",
        command=command,
        options=options,
        changes=change_list(able),
        arms=arms,
    )


def tables_by_arm(rows: pd.DataFrame, changes: list[str]) -> tuple[str, str]:
    """How many seeds of each arm have shares, in words; and their tables, and how alike two arms are, as Markdown."""
    counts, told, of = [], [], {}
    for arm, own in rows.groupby("arm", sort=False):
        solved = with_shares(own)
        counts.append(f"{solved['seed'].nunique()} of {own['seed'].nunique()} seeds of {arm}")
        if len(solved):
            told.append(f"### {arm}\n\n{arm_tables(solved, changes)}")
            of[str(arm)] = solved
    for one, other in combinations(of, 2):
        between = arms_alike(of[one], of[other], changes)
        told.append(
            f"For comparison: the shares of a model of {one} and one of {other} correlate by {between}, on the groups "
            "that both have."
        )
    return ", ".join(counts[:-1]) + " and " * (len(counts) > 1) + counts[-1], "\n\n".join(told)
