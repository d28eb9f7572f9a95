"""What the runs of an experiment will be, before the first: the sizes of its arms, what they measure, what they take.

Every arm is opened as a run opens it, up to its first step, so that what would stop a run late is known before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from dcinterp.model.build import build_model
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.progress import Progress, silent
from dcinterp.train.config.recipe import TrainConfig, require_cooldown
from dcinterp.train.control.experiment import FINAL, TUNING, Experiment, read_table
from dcinterp.train.control.sweep import COLUMNS, SweepRun, training_flops
from dcinterp.train.data.batches import Batches, DataSource
from dcinterp.train.data.data_source import count_tokens, open_data_source, resolve_steps
from dcinterp.train.loop.callbacks import Metrics
from dcinterp.train.loop.run import evaluation_callback, model_config, resolve
from dcinterp.train.loop.run_summary import roughly, time_step
from dcinterp.train.loop.start import OpenStart, Start, open_model

PROTOCOL = "protocol.md"


@dataclass(frozen=True)
class ArmPlan:
    """One arm at the first of the searched values.

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
    """arms: each of them. columns: what the runs of all arms measure. search, reported: runs, and how many are in the
    table. problems: what stands in the way, a sentence each.
    """

    arms: tuple[ArmPlan, ...]
    columns: tuple[str, ...]
    search: tuple[int, int]
    reported: tuple[int, int]
    seconds: float | None
    problems: tuple[str, ...]

    def lines(self) -> list[str]:
        """In Markdown: a row for each arm, and what all of them take and measure."""
        base = self.arms[0]
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
        found += ["", f"Parameters are without embeddings. The table has {self._runs()}."]
        if self.seconds is None:
            found.append("How long they take is not known: to time a step would take long here.")
        elif self.seconds:
            found.append(
                f"The others take {roughly(self.seconds)} here, one at a time, by timing one step of each arm; the "
                "optimiser and measurements are not counted."
            )
        found += [f"Every run measures {', '.join(self.columns)}.", ""]
        return (
            found + [f"! {each}" for each in self.problems or ()] + ["Nothing stands in the way."] * (not self.problems)
        )

    def _runs(self) -> str:
        parts = [("reported runs", self.reported)]
        if self.search[0]:
            parts.insert(0, ("runs of the search", self.search))
        return " and ".join(f"{ended} of {count} {what}" for what, (count, ended) in parts)


def plan_experiment(
    experiment: Experiment, open_start: OpenStart | None = None, progress: Progress = silent
) -> ExperimentPlan:
    """Open every arm as its runs will, without training any.

    Args:
        experiment: what `read_experiment` gave.
        open_start: opens the model that `model.start` names.
        progress: called after each arm.

    Cost: two passes over one batch for each arm, and what it takes to read the data.

    Raises:
        UserError: a run of an arm could not begin; the message names it.
    """
    plans, columns = [], dict[str, int]()
    with TemporaryDirectory() as folder:
        for number, arm in enumerate(experiment.arms, start=1):
            plan, measured = _plan(experiment, arm, Path(folder), open_start)
            plans.append(plan)
            for column in measured:
                columns[column] = columns.get(column, 0) + 1
            progress(number, len(experiment.arms), arm)
    always = tuple(column for column, count in columns.items() if count == len(plans))
    table = read_table(experiment)
    ended = set(table.loc[table["status"] == "done", "name"])
    search = [run.name for run in experiment.tuning_runs()] if experiment.tuning_keys else []
    reported = [
        {experiment.run_name(FINAL, arm, values, seed) for values in experiment.searched()}
        for seed in experiment.seeds
        for arm in experiment.arms
    ]
    return ExperimentPlan(
        tuple(plans),
        always,
        (len(search), sum(name in ended for name in search)),
        (len(reported), sum(bool(names & ended) for names in reported)),
        _seconds(experiment, plans, ended),
        tuple(_problems(experiment, always)),
    )


def _plan(
    experiment: Experiment, arm: str, folder: Path, open_start: OpenStart | None
) -> tuple[ArmPlan, tuple[str, ...]]:
    """The plan of an arm, and what its runs measure."""
    values = experiment.searched()
    for one in values:
        _settled(experiment.run(FINAL, arm, one, experiment.seeds[0]))
    run = experiment.run(FINAL, arm, values[0], experiment.seeds[0])
    with _said_of(run):
        start = open_model(run.config, open_start)
        config, source = _opened(run, folder, start)
        model = start.model if start else build_model(model_config(config, source))
        columns = (*COLUMNS, *evaluation_callback(config, source, Metrics(folder / "none", writes=False)).columns)
        batches = Batches(config.data, source, parts=config.recipe.gradient_accumulation)
        with _threads(config.recipe.threads):
            step = time_step(model, batches[0], batches.parts)
    # Of what is saved, as the table counts it: once where two names share a tensor, of which the embedding is first.
    saved = {each.data_ptr(): (name, each) for name, each in reversed(model.state_dict().items())}
    parameters = sum(each.numel() for name, each in saved.values() if "embed" not in name)
    tokens, rows = _read(config, source)
    fields = model.config.to_dict()
    if "image_size" in fields:
        patches = (fields["image_size"] // fields["patch_size"]) ** 2
        tokens *= patches
    flops = training_flops(fields, parameters, tokens, tokens / rows)
    search = None
    if experiment.tuning_keys:
        tried = experiment.run(TUNING, arm, values[0], experiment.tuning_seeds[0])
        with _said_of(tried):
            search = _opened(tried, folder, start)[0].steps
    seconds, searching = (step and count and step * count for count in (config.steps, search))
    return ArmPlan(arm, parameters, config.steps, flops, seconds, searching), columns


def _settled(run: SweepRun) -> TrainConfig:
    """The config of a run, refused as its run would be."""
    with _said_of(run):
        config = resolve(run.config)
        if not any(phase.tokens for phase in config.data.phases):
            require_cooldown(config)
        return config


def _opened(run: SweepRun, folder: Path, start: Start | None) -> tuple[TrainConfig, DataSource]:
    """The config of a run with its budgets of tokens as steps, and its data source."""
    config = _settled(run)
    source = open_data_source(config, folder, start.tokenizer if start else None)
    config = resolve_steps(config, source)
    require_cooldown(config)
    return config, source


def _read(config: TrainConfig, source: DataSource) -> tuple[float, int]:
    """(tokens, rows) of a run; the tokens by the first batch of each phase."""
    tokens, rows, step = 0.0, 0, 0
    batches = Batches(config.data, source)
    for phase in config.data.phases:
        tokens += count_tokens(batches[step], source) * phase.steps
        rows += phase.steps * phase.batch_size
        step += phase.steps
    return tokens, rows


def _seconds(experiment: Experiment, plans: Sequence[ArmPlan], ended: set[str]) -> float | None:
    """Of the runs that are still to come, one at a time; None where a step was not timed."""
    total = 0.0
    for plan in plans:
        search = [
            experiment.run_name(TUNING, plan.arm, values, seed)
            for values in experiment.searched()
            for seed in experiment.tuning_seeds
            if experiment.tuning_keys and plan.arm in experiment.searched_arms
        ]
        reported = [
            {experiment.run_name(FINAL, plan.arm, values, seed) for values in experiment.searched()}
            for seed in experiment.seeds
        ]
        if plan.seconds is None:
            return None
        total += sum(name not in ended for name in search) * (plan.search_seconds or 0)
        total += sum(not names & ended for names in reported) * plan.seconds
    return total


def _problems(experiment: Experiment, columns: Sequence[str]) -> Iterator[str]:
    named = {"measures": list(experiment.measures)}
    if experiment.tuning_keys:
        named["tuning.by"] = [experiment.tuned_by]
    if experiment.solved_by:
        named["solved.by"] = [experiment.solved_by]
    named["hypotheses"] = [each.measure for each in experiment.hypotheses if each.measure]
    for key, wanted in named.items():
        for column in wanted:
            if column not in columns:
                yield f"{key} names {column!r}, which not all runs measure; {nearest(column, columns)}"
    if not (experiment.folder / PROTOCOL).is_file():
        yield f"There is no {experiment.folder / PROTOCOL}; write it, and commit it before the first run that counts."


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
