"""What the runs of an experiment will be, before the first: the sizes of its arms, what they measure, what they take.

Every arm is opened as a run opens it, up to its first step, so that what would stop a run late is known before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from dcinterp.model.build import build_model
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.progress import Progress, silent
from dcinterp.train.config.recipe import TrainConfig, require_cooldown, require_read_keys
from dcinterp.train.control.experiment import ENDED, FINAL, PROTOCOL, TUNING, Experiment, read_table
from dcinterp.train.control.sweep import COLUMNS, SweepRun, patches, training_flops
from dcinterp.train.data.batches import Batches, DataSource
from dcinterp.train.data.data_source import count_tokens, open_data_source, require_fitting, resolve_steps
from dcinterp.train.loop.callbacks import Metrics
from dcinterp.train.loop.run import evaluation_callback, model_config, resolve
from dcinterp.train.loop.run_summary import roughly, time_step
from dcinterp.train.loop.start import OpenStart, Start, open_model
from dcinterp.train.loop.trainer import on_cpu


@dataclass(frozen=True)
class ArmPlan:
    """One arm, at the values that the search chose, or at the first of those that it will try.

    parameters: all but embeddings. flops: of one reported run, by the formula of `training_flops`, with the tokens of
    its first batches. seconds: of one, by timing a step; None where that would take long. search_seconds: of one of
    the search.
    """

    arm: str
    parameters: int
    steps: int
    flops: float
    seconds: float | None
    search_seconds: float | None


@dataclass(frozen=True)
class ExperimentPlan:
    """arms: each of them. chosen: whether the search has ended. columns: what the reported runs of all arms measure.
    search, reported: runs, and how many of them are in the table. seconds: of all that are to come, None where a step
    was not timed. problems: what stands in the way, a sentence each.
    """

    arms: tuple[ArmPlan, ...]
    chosen: bool
    columns: tuple[str, ...]
    search: tuple[int, int]
    reported: tuple[int, int]
    seconds: float | None
    problems: tuple[str, ...]

    def lines(self) -> list[str]:
        """In Markdown: a row for each arm, and what all of them take and measure."""
        base = self.arms[0]
        at = "" if self.chosen else "; all numbers are at the first of the values that are searched"
        found = [
            f"| arm | parameters | of {base.arm} | steps | FLOPs of a run | of {base.arm} | a run here |",
            "|---|---|---|---|---|---|---|",
        ]
        for each in self.arms:
            share, compute = each.parameters / base.parameters, each.flops / base.flops
            takes = "" if each.seconds is None else roughly(each.seconds).removeprefix("about ")
            compute_text = f"{each.flops:.2e} | {compute:.3f}"
            found.append(
                f"| {each.arm} | {each.parameters:,} | {share:.3f} | {each.steps:,} | {compute_text} | {takes} |"
            )
        found += ["", f"Parameters are without embeddings{at}. The table has {self._runs()}."]
        if self.seconds is None:
            found.append("How long they take is not known: to time a step would take long here.")
        elif self.seconds:
            found.append(
                f"The others take {roughly(self.seconds)} here, one at a time, by the fastest of three steps of each "
                "arm; not counted are the optimiser, measurements, and the seconds in which each run starts."
            )
        found += [f"Every reported run measures {', '.join(self.columns)}.", ""]
        return [*found, *([f"! {each}" for each in self.problems] or ["Nothing stands in the way."])]

    def _runs(self) -> str:
        parts = [("reported runs", self.reported)]
        if self.search[0]:
            parts.insert(0, ("runs of the search", self.search))
        return " and ".join(f"{ended} of {count} {what}" for what, (count, ended) in parts)


def plan_experiment(
    experiment: Experiment, open_start: OpenStart | None = None, progress: Progress = silent
) -> ExperimentPlan:
    """Open every run of an experiment up to its first step (of seeds, the first), without training any.

    Args:
        experiment: what `read_experiment` gave.
        open_start: opens the model that `model.start` names.
        progress: called after each arm.

    Cost: a few passes over one batch for each arm, and what it takes to read the data.

    Raises:
        UserError: a run could not begin; the message names it.
    """
    table, problems = read_table(experiment), list[str]()
    try:
        every = product(experiment.arms, experiment.searched(), experiment.seeds)
        reportable = [experiment.run(FINAL, *each) for each in every]
        experiment.require_config([*experiment.tuning_runs(), *reportable], table)
    except UserError as problem:
        problems.append(str(problem))
    try:
        chosen = experiment.choose(table)
    except UserError:
        chosen = {}
    plans, seen = list[ArmPlan](), _Seen([], [])
    with TemporaryDirectory() as folder:
        opener = _Opener(experiment, Path(folder), open_start)
        for number, arm in enumerate(experiment.arms, start=1):
            plans.append(opener.plan(arm, chosen.get(arm), seen))
            progress(number, len(experiment.arms), arm)
    ended = set(table.loc[table["status"].isin(ENDED), "name"])
    search = [_tally(_searched_by(experiment, plan.arm), ended, plan.search_seconds) for plan in plans]
    reported = [_tally(_reported_by(experiment, plan.arm, chosen), ended, plan.seconds) for plan in plans]
    takes = [each.seconds for each in (*search, *reported)]
    columns, in_search = (tuple(_common(each)) for each in (seen.reported, seen.search))
    problems += _problems(experiment, columns, in_search)
    return ExperimentPlan(
        tuple(plans),
        bool(chosen),
        columns,
        (sum(each.runs for each in search), sum(each.ended for each in search)),
        (sum(each.runs for each in reported), sum(each.ended for each in reported)),
        None if None in takes else sum(each or 0.0 for each in takes),
        tuple(problems),
    )


class _Tally(NamedTuple):
    """So many runs, those that have ended, and the seconds of the others; None where a step was not timed."""

    runs: int
    ended: int
    seconds: float | None


def _tally(runs: Sequence[set[str]], ended: set[str], seconds: float | None) -> _Tally:
    """Of runs by the names that each of them may have."""
    there = sum(bool(names & ended) for names in runs)
    left = len(runs) - there
    return _Tally(len(runs), there, left * seconds if left and seconds is not None else None if left else 0.0)


@dataclass(frozen=True)
class _Seen:
    """What runs measure, of each that was opened: those of the search, and those that are reported."""

    search: list[tuple[str, ...]]
    reported: list[tuple[str, ...]]


@dataclass
class _Opener:
    """Opens runs as training does, and reads no data twice.

    folder: for tokenizers, which a run writes.
    """

    experiment: Experiment
    folder: Path
    open_start: OpenStart | None
    sources: dict[str, DataSource] = field(default_factory=dict)
    starts: dict[str, Start | None] = field(default_factory=dict)

    def plan(self, arm: str, chosen: dict[str, Any] | None, seen: _Seen) -> ArmPlan:
        """The plan of an arm; what its runs measure joins `seen`."""
        experiment, search = self.experiment, None
        if experiment.tuning_keys and arm in experiment.searched_arms:
            for values in reversed(experiment.searched()):
                run = experiment.run(TUNING, arm, values, experiment.tuning_seeds[0])
                with _said_of(run):
                    config, source, start = self.open(run)
                    seen.search.append(self.columns(config, source, start))
                search = config.steps
        for values in reversed([chosen] if chosen is not None else experiment.searched()):
            run = experiment.run(FINAL, arm, values, experiment.seeds[0])
            with _said_of(run):
                config, source, start = self.open(run)
                seen.reported.append(self.columns(config, source, start))
        with _said_of(run):  # the first of the values
            model = start.model if start else build_model(model_config(config, source))
            seconds = _time(model, config, source)
        # Of what is saved, as the table counts it: once where two names share a tensor; the embedding's is the first.
        saved = {each.data_ptr(): (name, each) for name, each in reversed(model.state_dict().items())}
        parameters = sum(each.numel() for name, each in saved.values() if "embed" not in name)
        tokens, rows = _read(config, source)
        fields = model.config.to_dict()
        if "image_size" in fields:
            tokens *= patches(fields)
        flops = training_flops(fields, parameters, tokens, tokens / rows)
        takes, searching = (seconds and steps and seconds * steps for steps in (config.steps, search))
        return ArmPlan(arm, parameters, config.steps, flops, takes, searching)

    def open(self, run: SweepRun) -> tuple[TrainConfig, DataSource, Start | None]:
        """A run before its first step: its config with budgets of tokens as steps, its data, and what it starts from.

        Raises:
            UserError: it could not begin.
        """
        config = resolve(run.config)
        model = repr(config.model)
        if model not in self.starts:
            self.starts[model] = open_model(config, self.open_start)
        start = self.starts[model]
        key = repr((replace(config.data, seed=0), config.model.start))
        if key not in self.sources:
            self.sources[key] = open_data_source(config, self.folder, start.tokenizer if start else None)
        source = self.sources[key]
        config = resolve_steps(config, source)
        require_cooldown(config)
        require_read_keys(config)
        if start is None:
            with torch.device("meta"):
                opened = build_model(model_config(config, source))
        else:
            opened = start.model
        require_fitting(config, source, opened.config)
        return config, source, start

    def columns(self, config: TrainConfig, source: DataSource, start: Start | None) -> tuple[str, ...]:
        """What the table has of such a run."""
        missing = {"loss"} if config.log_every > config.steps else set()
        if start and start.added is not None and config.model.train == "composition":
            missing |= {"parameters", "flops", "seconds"}  # it saves no whole model
        model = start.model.config if start else model_config(config, source)
        held_out = evaluation_callback(config, source, Metrics(self.folder / "none", writes=False), model)
        return (*(column for column in COLUMNS if column not in missing), *held_out.columns)


def _searched_by(experiment: Experiment, arm: str) -> list[set[str]]:
    """The name of each of an arm's runs of the search."""
    if not experiment.tuning_keys or arm not in experiment.searched_arms:
        return []
    return [
        {experiment.run_name(TUNING, arm, *each)} for each in product(experiment.searched(), experiment.tuning_seeds)
    ]


def _reported_by(experiment: Experiment, arm: str, chosen: Mapping[str, dict[str, Any]]) -> list[set[str]]:
    """The names that an arm's reported runs may have, as long as the search has not chosen."""
    values = [chosen[arm]] if chosen else experiment.searched()
    return [{experiment.run_name(FINAL, arm, each, seed) for each in values} for seed in experiment.seeds]


def _common(measured: Sequence[tuple[str, ...]]) -> list[str]:
    """The columns that all of these runs have, in the order of the first."""
    return [column for column in measured[0] if all(column in each for each in measured)] if measured else []


def _time(model: PreTrainedModel, config: TrainConfig, source: DataSource) -> float | None:
    """Seconds of a step, the least of a few, where a run trains."""
    if not on_cpu():
        move: Any = model.to
        move(torch.accelerator.current_accelerator())
    batches = Batches(config.data, source, parts=config.recipe.gradient_accumulation)
    with _threads(config.recipe.threads):
        found = [time_step(model, batches[0], batches.parts) for _ in range(3)]
    return None if None in found else min(each for each in found if each is not None)


def _read(config: TrainConfig, source: DataSource) -> tuple[float, int]:
    """(tokens, rows) of a run; the tokens by the first batch of each phase."""
    tokens, rows, step = 0.0, 0, 0
    batches = Batches(config.data, source)
    for phase in config.data.phases:
        tokens += count_tokens(batches[step], source) * phase.steps
        rows += phase.steps * phase.batch_size
        step += phase.steps
    return tokens, rows


def _problems(experiment: Experiment, columns: Sequence[str], in_search: Sequence[str]) -> Iterator[str]:
    named = [("measures", column, columns) for column in experiment.measures]
    named += [("tuning.by", experiment.tuned_by, in_search)] * bool(experiment.tuning_keys)
    named += [("solved.by", experiment.solved_by, columns)] * bool(experiment.solved_by)
    named += [("hypotheses", each.measure, columns) for each in experiment.hypotheses if each.measure]
    for key, column, known in named:
        if column not in known:
            of = "of the search" if key == "tuning.by" else "that are reported"
            yield f"{key} names {column!r}, which not all runs {of} measure; {nearest(column, known)}"
    primary = next(iter(experiment.measures))
    if experiment.measure_best == "highest" and _is_loss(primary):
        yield (
            f"tuning.measure_best is highest, and lower is better in {primary!r}, the first of the measures; give "
            "lowest, or another first. A hypothesis says that its arm has more of the measure than its baseline."
        )
    if not (experiment.folder / PROTOCOL).is_file():
        yield f"There is no {experiment.folder / PROTOCOL}; write it, and commit it before the first run that counts."


def _is_loss(measure: str) -> bool:
    """Whether less of a measure of a table is better."""
    return measure.endswith("loss") or measure == "bits_per_byte"


@contextmanager
def _said_of(run: SweepRun) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"The run {run.name}: {error}") from error


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
