"""By which ways models that learnt a puzzle carry it, and whether the same ways return over seeds and experiments.

    motif_table(motifs(experiments), "experiments")

A way leads out of the attention of layer 0 (`L0 -> ...`) in models of two layers, over all heads. `pooled_edges` says
how its share of a change's effect is measured; `circuits.csv` of an experiment holds what was measured of its models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from dcinterp.evidence.arm_circuits import TABLE
from dcinterp.evidence.pooled_edges import FLOOR, models_alike, shares_of, with_shares
from dcinterp.evidence.trained_models import measured_of
from dcinterp.evidence.verdicts import comparison, replication
from dcinterp.evidence.ways_out import count_largest, place
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import FINAL, Experiment, NoRunsYet

SOURCE, LAYERS = "L0 -> ", 2
COLUMNS = ("experiment", "arm", "learnt it", "looked into", "largest way, in how many of them", "alike")


class Motif(NamedTuple):
    """What was measured of one arm of an experiment, or of its repetition with other seeds.

    largest: {change: {way: in how many models its share is the largest}}; "" where no way carries `FLOOR`.
    alike: {change: how two models correlate in the mean}, of `models_alike`.
    """

    experiment: str
    seeds: str
    arm: str
    trained: int
    learnt: int
    """How many reach what the experiment calls solved."""
    asked: int
    """How many of these were measured, and prefer the answer in most prompts of every change."""
    largest: Mapping[str, Mapping[str, int]]
    alike: Mapping[str, float | None]


def motifs(experiments: Iterable[Experiment]) -> list[Motif]:
    """Every arm of experiments on puzzles with models of two layers, with what was measured of it.

    Args:
        experiments: those that do not say when a model has learnt its puzzle are left out, and those in which no run
            of every arm has ended.

    Raises:
        UserError: as `verdict_rows`.
    """
    rows = list[Motif]()
    for experiment in experiments:
        if not experiment.solved_by:
            continue
        again = replication(experiment)
        for asked, folder in ((experiment, experiment.folder), (again, experiment.replication_folder)):
            with suppress(NoRunsYet):
                rows += _arms_of(asked, folder / TABLE) if asked is not None else []
    return rows


def _arms_of(experiment: Experiment, table: Path) -> Iterator[Motif]:
    """A row for every arm of two layers; the table is that of what was measured of its models."""
    runs, part = comparison(experiment, experiment.solved_by), experiment.solved_part
    measured = with_shares(measured_of(experiment, table))
    for arm, values in zip(runs.arms, runs.values, strict=True):
        if experiment.run(FINAL, arm, {}, runs.seeds[0]).config.model.changes.get("num_hidden_layers") != LAYERS:
            continue
        own = measured[measured["arm"] == arm]
        shares = {change: shares_of(own, arm, part, change) for change in map(str, own["change"].unique())}
        yield Motif(
            experiment=experiment.folder.name,
            seeds=f"{runs.seeds[0]} to {runs.seeds[-1]}",
            arm=arm,
            trained=len(runs.seeds),
            learnt=int((values >= experiment.solved_at).sum()),
            asked=own["seed"].nunique(),
            largest={c: count_largest(each, [w for w in each if w.startswith(SOURCE)]) for c, each in shares.items()},
            alike={change: models_alike(own, change)[0] for change in shares},
        )


def motif_rows(found: Iterable[Motif]) -> list[tuple[str, ...]]:
    """A row for every arm of which models were looked into, by `COLUMNS`."""
    return [
        (
            f"{each.experiment}, seeds {each.seeds}",
            each.arm,
            f"{each.learnt} of {each.trained}",
            str(each.asked),
            "; ".join(f"{change}: {_counted(counts)}" for change, counts in each.largest.items()),
            ", ".join("?" if alike is None else f"{alike:.2f}" for alike in each.alike.values()),
        )
        for each in found
        if each.asked
    ]


def not_looked_into(found: Sequence[Motif]) -> str:
    """How many of the models that learnt their puzzle were looked into, and of which arms none was, in words."""
    learnt, asked = sum(each.learnt for each in found), sum(each.asked for each in found)
    left = [each for each in found if each.learnt and not each.asked]
    named = [
        f"{experiment}, seeds {seeds} ({', '.join(f'{each.arm} {each.learnt}' for each in own)})"
        for (experiment, seeds), own in groupby(left, key=lambda each: (each.experiment, each.seeds))
    ]
    text = f"{asked} models were looked into; {learnt} learnt their puzzle."
    return f"{text} Of these arms none was, with how many learnt it: {'; '.join(named)}." if named else text


def motif_table(found: Sequence[Motif], folder: str) -> str:
    """The rows and what is not among them, as Markdown.

    Args:
        found: of `motifs`.
        folder: where the pages of the experiments are, from the document that has the table; empty for no links.
    """
    body, last = [], ""
    for name, *row in motif_rows(found):
        page, seeds = name.rsplit(", ", 1)
        linked = f"[{page}]({folder}/{page}.md), {seeds}" if folder else name
        body.append([linked if name != last else "", *row])
        last = name
    return f"{markdown_table(list(COLUMNS), body)}\n\n{not_looked_into(found)}"


def _counted(counts: Mapping[str, int]) -> str:
    """The ways with how many models have each as the largest, in words."""
    return ", ".join(f"{place(way) if way else f'none with {FLOOR:.0%}'} ({number})" for way, number in counts.items())
