"""Many runs from one file: a list or a grid of configs, each in a process of its own, and one tidy table of results.

    output: runs/ablation
    config: base.yaml                     # beside this file; or the keys and values themselves
    runs:                                 # what differs, run by run
      - {name: all}
      - {name: no gate, model.changes.compose_gate: false}
    grid:                                 # and all combinations of these
      data.seed: [0, 1]
    jobs: 1                               # runs at a time

A run that is finished is not run again, one that was stopped goes on, and one that fails is named in the table and
does not stop the rest.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pandas as pd

from dcinterp.model.compose.base import Place
from dcinterp.model.compose.registry import composer_class
from dcinterp.model.config import DCFormerConfig, DCViTConfig
from dcinterp.model.presets import preset
from dcinterp.support.cluster import require_own_jobs, require_scheduler
from dcinterp.support.cores import available_cores
from dcinterp.support.errors import UserError, nearest, shortened
from dcinterp.support.file_names import is_trained
from dcinterp.support.paths import path_of
from dcinterp.support.progress import Progress, silent
from dcinterp.support.table_files import write_table
from dcinterp.support.text import shown
from dcinterp.train.config.recipe import (
    TrainConfig,
    build_config,
    find_config,
    read_config,
    read_tree,
    require_counts,
    require_ranges,
    set_key,
    unshared,
    write_config,
)
from dcinterp.train.control.engines import (
    LOCAL,
    ORPHAN_SECONDS,
    STACKED,
    open_engine,
    train_stack_there,
    train_there,
)
from dcinterp.train.control.resume import check_resumable
from dcinterp.train.control.run_lock import lock_holder, lock_run
from dcinterp.train.control.signals import interrupt_on_signals
from dcinterp.train.loop.checkpoints import steps_in
from dcinterp.train.loop.metrics_file import accuracy_column, data_digest, made_with, read_records, trained_steps

KEYS = ("output", "config", "runs", "grid", "jobs")
MOST_RUNS = 100_000
"""Of a sweep, or a search: a few lists of values come to billions, all of which would be made to be checked."""
TABLE = "results.csv"
LONGEST_NAME = 200
"""Bytes of the name of a run, which its files are named after."""
LOCK = ".sweep"
COLUMNS = ("loss", "steps", "tokens", "parameters", "flops", "seconds")
"""What the table has of a run that ended (the loss, if it wrote a line); the rest is measured on held-out documents."""


@dataclass(frozen=True)
class SweepRun:
    """One run: its name, the keys that set it apart, and its whole config."""

    name: str
    keys: dict[str, Any]
    config: TrainConfig


@dataclass(frozen=True)
class Sweep:
    """All runs of a file. `output` receives a folder and a log per run, and the table."""

    output: Path
    runs: tuple[SweepRun, ...]
    jobs: int


def read_sweep(path: str | Path, *, output: str | Path | None = None) -> Sweep:
    """The runs that a file describes, every one of them checked.

    Args:
        path: the YAML file.
        output: another folder than the one that the file names.

    Raises:
        UserError: a key is unknown, a run's config is not valid (the run is named), or two runs have one name.
    """
    path = find_config(path, "sweep")
    tree = read_tree(path)
    for key in tree:
        if key not in KEYS:
            raise UserError(f"Unknown key {key!r} in the sweep {path}; {nearest(str(key), KEYS)}")
    base = tree.get("config") or {}
    if isinstance(base, str):
        base = read_tree(path.parent / base)
    if not isinstance(base, dict):
        raise UserError(f"`config` of {path} must hold keys and values, or name a file that does.")
    if not isinstance(tree.get("output") or "", str):
        raise UserError(f"`output` of {path} must be a folder.")
    grid, listed, jobs = tree.get("grid") or {}, tree.get("runs") or [{}], tree.get("jobs", 1)
    if isinstance(grid, dict):
        grid = {str(key): values for key, values in grid.items()}
    if not isinstance(grid, dict) or not all(isinstance(values, list) and values for values in grid.values()):
        raise UserError(f"The grid of {path} must hold keys with lists of values, such as `data.seed: [0, 1]`.")
    if not isinstance(listed, list) or not all(isinstance(run, dict) for run in listed):
        raise UserError(f"The runs of {path} must be a list of keys and values, such as `- {{name: all}}`.")
    if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1:
        raise UserError(f"jobs is {jobs!r} in {path}; it must be a whole number of at least 1.")
    if not any(tree.get(key) for key in ("config", "runs", "grid")):
        raise UserError(f"{path} describes no runs; give `config`, `runs` or `grid`.")
    if (count := len(listed) * math.prod(map(len, grid.values()))) > MOST_RUNS:
        raise UserError(f"{path} describes {count:,} runs; {MOST_RUNS:,} are the most: leave values of its grid out.")
    folder = path_of(output or tree.get("output") or f"runs/{path.stem}")
    runs = [
        _run(base, folder, run, dict(zip(grid, chosen, strict=True)))
        for run in listed
        for chosen in product(*grid.values())
    ]
    for run in runs:
        _require_model(run)
    named: dict[str, str] = {}
    for name in (run.name for run in runs):
        if (other := named.get(name.casefold())) is not None:
            both = f" and {other!r}, which would be one folder on many disks" if other != name else ""
            said = f"are called {name!r}{both}; give the entries under `runs` different names"
            raise UserError(f"Two runs of {path} {said}.")
        named[name.casefold()] = name
    return Sweep(folder, tuple(runs), jobs)


def run_sweep(
    sweep: Sweep,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    engine: str = LOCAL,
    blind: bool = False,
    written: Callable[[], None] = lambda: None,
    beside: Sequence[Path] = (),
) -> pd.DataFrame:
    """Run what is not finished yet, and return the table, which is also in `output`/results.csv.

    Args:
        sweep: what `read_sweep` gave.
        jobs: runs at a time; the file's number when None. A cluster that runs already has its own.
        progress: called as runs end; raising `Cancelled` stops the others, which go on at the next call.
        engine: where they run: "local", "stacked:cuda", "dask", or "dask:ADDRESS" (dcinterp.train.control.engines).
        blind: tell of running ones their steps alone, and no loss.
        written: called whenever the table has been written: before the first run, and as runs end.
        beside: folders of further runs that these are compared with.

    Raises:
        UserError: there is no such engine, it does not answer or has its own number of runs at a time, or another
            process runs a sweep in this folder.
    """
    require_own_jobs(engine, jobs)
    sweep.output.mkdir(parents=True, exist_ok=True)
    with lock_run(sweep.output, file=LOCK, way_out="give another output"), interrupt_on_signals():
        return _run_sweep(sweep, jobs or sweep.jobs, progress or silent, engine, blind, written, beside)


def _run_sweep(
    sweep: Sweep,
    jobs: int,
    progress: Progress,
    engine: str,
    blind: bool,
    written: Callable[[], None],
    beside: Sequence[Path],
) -> pd.DataFrame:
    """As `run_sweep`, by the process that has the folder."""
    recorded_failures(sweep)  # refuses to write over another table
    waiting = [run for run in sweep.runs if not is_finished(run)]
    read: dict[str, tuple[Path, str]] = {}
    for folder in (*beside, *(Path(run.config.output) for run in sweep.runs)):
        require_same_text(folder, read)
    failures: dict[str, str] = {}
    done = len(sweep.runs) - len(waiting)
    table = results(sweep, failures)
    written()
    progress(done, len(sweep.runs), f"{done} finished before")
    if not waiting:
        return table
    # The pool waits for its runs as it closes, and they read shared documents until they have ended.
    with (
        _stop_file(sweep.output) as stop,
        ExitStack() as held,
        open_engine(engine, jobs, sweep.output, progress) as pool,
    ):
        pending: dict[Future[str], list[SweepRun]] = {}
        try:
            kind, _, device = engine.partition(":")
            if kind == STACKED:
                # Only here: it brings all of transformers, and this module is read for the help of other commands.
                from dcinterp.train.data.made_documents import make_documents

                documents = held.enter_context(_documents(sweep.output))
                make_documents([run.config for run in waiting], documents, available_cores(), progress)
                pending = {
                    _submit_stack(pool, runs, sweep.output, stop, documents, device): runs for runs in stacks(waiting)
                }
            else:
                pending = {_submit(pool, run, sweep.output, stop): [run] for run in waiting}
            while pending:
                ended, _ = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in ended:
                    together = pending.pop(future)
                    failures |= _failures(together, _outcome(future, pool))
                    done += len(together)
                    table = results(sweep, failures)
                    written()
                    for run in together:
                        require_same_text(Path(run.config.output), read)
                        progress(done, len(sweep.runs), f"{run.name}: {failures.get(run.name) or 'done'}")
                if not ended:
                    running = [run for together in pending.values() for run in together]
                    progress(done, len(sweep.runs), _describe_running(running, blind))
        except BaseException:
            stop.touch()
            wait(pending, timeout=ORPHAN_SECONDS)  # a cluster without workers would never end what waits there
            results(sweep, failures)
            written()
            raise
    return table


def results(sweep: Sweep, failures: dict[str, str] | None = None) -> pd.DataFrame:
    """One row per run, as far as it is: what sets it apart, size, compute, and its last measurements.

    Columns: name, status ("done", "failed", "running", "stopped" or "waiting"), message, the swept keys, family (of the
    preset; empty where a run starts from a model), parameters, steps, tokens, flops (of training, by the formula of
    `training_flops`), loss (mean of the last tenth of the lines),
    what was measured on held-out documents, seconds, and what it was made with: data_digest (of the text or images, not
    of documents that are made), torch, device, and commit (of this repository, where it is known).
    """
    rows = [_row(run, (failures or {}).get(run.name, "")) for run in sweep.runs]
    table = pd.DataFrame(rows)
    write_table(table, sweep.output / TABLE)
    return table


def recorded_failures(sweep: Sweep) -> dict[str, str]:
    """{run: why it failed}, as the table says, of runs that have not ended since.

    Raises:
        UserError: there is another file in the place of the table.
    """
    path = sweep.output / TABLE
    if not path.is_file():
        return {}
    table = read_results(path, ("name", "status", "message"), "give another output", keep_default_na=False, dtype=str)
    failed = table[table["status"] == "failed"].set_index("name")["message"]
    return {run.name: str(failed[run.name]) for run in sweep.runs if run.name in failed and not is_finished(run)}


def read_results(path: Path, needed: Sequence[str], give: str, **options: Any) -> pd.DataFrame:
    """The table of a file of results.

    Args:
        path: the file.
        needed: columns that it must have.
        give: what to do where it is no such table, for the end of the sentence.
        options: of `pandas.read_csv`.

    Raises:
        UserError: it is no table, or a column is missing.
    """
    try:
        table = pd.read_csv(path, **options)
    except ValueError as error:  # no text, no columns, or lines that do not fit together
        raise UserError(f"{path} is not a valid table ({error}); {give}.") from error
    for column in needed:
        if column not in table:
            raise UserError(f"{path} has no column {column!r}; {give}.")
    return table


def is_finished(run: SweepRun) -> bool:
    """Whether a run has come to its end, with this very config.

    One that is being lengthened has the config of its end and the model of its earlier one.
    """
    folder = Path(run.config.output)
    if not is_trained(folder / "model") or not (folder / "config.yaml").is_file():
        return False
    saved = _saved(run)
    same = _without_place(run.config) == _without_place(saved)
    return same and trained_steps(folder) in (None, saved.steps)


def _saved(run: SweepRun) -> TrainConfig:
    """The config in the folder of a run, without the type of numbers that the machine settled."""
    saved = read_config(Path(run.config.output) / "config.yaml")
    return replace(saved, recipe=replace(saved.recipe, bf16=None)) if run.config.recipe.bf16 is None else saved


def require_same_text(folder: Path, read: dict[str, tuple[Path, str]]) -> None:
    """Refuse runs whose configs name the same text or images, and which read others, since the files have changed.

    Args:
        folder: of a run; one that has not ended is left alone.
        read: the first run of each such setting and the hash of what it read; this one joins it where it is the first.

    Raises:
        UserError: this run read others than the first.
    """
    history, config = folder / "history.jsonl", folder / "config.yaml"
    if not (is_trained(folder / "model") and history.is_file() and config.is_file()):
        return
    digest = data_digest(read_records(history)[0])
    if not digest:  # documents that are made
        return
    try:
        settings = read_config(config)
    except UserError:  # of another version, whose settings are not ours to compare
        return
    sources = sorted({phase.source for phase in settings.data.phases})
    key = repr((sources, settings.data.text, settings.data.images, settings.model.start))
    first, theirs = read.setdefault(key, (folder, digest))
    if digest != theirs:
        raise UserError(
            f"{first} and {folder} were trained on different texts or images, though their settings name the same: the "
            "files have changed in between, so the runs do not compare. Remove the folders of those of the old text, "
            "and their rows of a table of an experiment, or give another output."
        )


def _without_place(config: TrainConfig) -> TrainConfig:
    """A config without its place and what a run settles for itself: the steps that a budget of tokens comes to."""
    phases = tuple(replace(phase, steps=1) if phase.tokens else phase for phase in config.data.phases)
    return replace(config, output="", data=replace(config.data, phases=phases))


def patches(fields: dict[str, Any]) -> int:
    """The patches of an image, which are its tokens, by a model's config.json."""
    return int(fields["image_size"] // fields["patch_size"]) ** 2


def training_flops(fields: dict[str, Any], parameters: int, tokens: float, row: float) -> float:
    """FLOPs of training: three times those of the forward pass.

    A token takes 2 FLOPs for each parameter of the blocks and the unembedding, and in every layer 4 S H d for plain
    attention to S keys (H heads of width d) and, for composing, what a pair costs in each stage
    (dcinterp.model.complexity). S is `row`, or the window of a local layer.

    Args:
        fields: of the model's config.json.
        parameters: all but embeddings.
        tokens: read in training.
        row: tokens in a row, on average; of images, patches in an image.

    Raises:
        UserError: the way of composing does not say what it costs.
    """
    config = (DCViTConfig if "image_size" in fields else DCFormerConfig).from_dict(fields)
    assert config.head_dim is not None
    attention = 0.0
    for layer, window in enumerate(config.windows):
        pair = 4.0 * config.num_attention_heads * config.head_dim
        for stage in config.stages:
            pair += composer_class(config.compose).cost_at(config, Place(layer, stage)).per_pair
        attention += pair * (row if window is None else min(window, row))
    if isinstance(config, DCFormerConfig) and config.tie_word_embeddings:
        parameters += config.vocab_size * config.hidden_size  # the embedding, used once more as the unembedding
    return 3 * tokens * (2 * parameters + attention)


def _require_model(run: SweepRun) -> None:
    """Refuse a run whose model cannot be built, whatever it reads."""
    model = run.config.model
    try:
        # What images are like the data say, and a patch that does not divide the preset's may divide theirs.
        if not model.start and preset(model.preset).family not in ("vit", "dcvit"):
            DCFormerConfig.preset(model.preset, **model.changes)
    except UserError as error:
        raise UserError(f"The run {run.name}: {error}") from error


def _run(base: dict[str, Any], folder: Path, listed: dict[str, Any], chosen: dict[str, Any]) -> SweepRun:
    named, chosen = ({str(k): v for k, v in keys.items() if k != "name"} for keys in (listed, chosen))
    for key in (*named, *chosen):
        if key == "output":
            raise UserError("A run of a sweep has its folder below that of the sweep; leave output out of it.")
    for key, other in product(leaves(named), leaves(chosen)):
        if meet(key, other):
            raise UserError(f"{key} of a run and {other} of the grid set the same thing; leave one of them out.")
    for key, other in combinations(leaves(named), 2):
        if meet(key, other):
            raise UserError(f"{key} stands twice in a run of a sweep, once in a section; leave one of them out.")
    keys = named | chosen
    parts = [str(listed["name"])] if "name" in listed else [f"{k.split('.')[-1]}={v}" for k, v in keys.items()]
    if "name" in listed:
        parts += [f"{k.split('.')[-1]}={v}" for k, v in chosen.items()]
    return make_run(base, folder, ",".join(parts), keys)


def leaves(keys: Mapping[str, Any]) -> list[str]:
    """The dotted keys of all values, those inside of sections one by one."""
    found = []
    for key, value in keys.items():
        inside = {f"{key}.{each}": inner for each, inner in value.items()} if isinstance(value, dict) else {}
        found += leaves(inside) or [str(key)]
    return found


def meet(key: str, other: str) -> bool:
    """Whether two dotted keys are the same, or one is a section that holds the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def make_run(base: dict[str, Any], folder: Path, title: str, keys: dict[str, Any]) -> SweepRun:
    """The run of a config with some keys set, in a folder below `folder` that is named after `title`.

    Raises:
        UserError: the config is not valid; the message names the run.
    """
    name = file_name(title) or "run"
    if len(name.encode()) > LONGEST_NAME:
        raise UserError(
            f"The run {shortened(name, 80)} has a name of {len(name.encode())} bytes, too many for a folder; give "
            "shorter names or values."
        )
    if not name.strip("."):
        raise UserError(f"A run cannot be called {title!r}, which names another folder; give it another name.")
    # Copies that share nothing: a later key may go into an earlier one's value, and YAML's aliases are one object.
    tree = unshared(base)
    for key, value in keys.items():
        require_no_section(tree, key, value)
        set_key(tree, key, unshared(value))
    try:
        config = build_config(tree)
        require_ranges(config.recipe)
        require_counts(config)
    except UserError as error:
        raise UserError(f"The run {name}: {error}") from error
    return SweepRun(name, keys, replace(config, output=str(folder / name)))


def require_no_section(tree: dict[str, Any], key: str, value: Any) -> None:
    """Refuse keys and values in place of a section that holds others already: those would be dropped without a word.

    Raises:
        UserError: the message gives the key to write.
    """
    inside: Any = tree
    for part in key.split("."):
        inside = inside.get(part) if isinstance(inside, dict) else None
    if not isinstance(inside, dict) or not isinstance(value, dict):
        return
    if lost := [each for each in inside if each not in value]:
        inner = f"{key}.{next(iter(value))}" if value else key
        raise UserError(
            f"{key} would take the place of a section that also has {shown(lost[0])}; write its keys one by one, as in "
            f"`{inner}: ...`."
        )


def file_name(title: str) -> str:
    """A title as the name of a folder."""
    return re.sub(r"[^\w.+=,-]+", "-", title)


@contextmanager
def _stop_file(output: Path) -> Iterator[Path]:
    """A file that tells all workers to stop once it is there; it is gone when they have."""
    for left in output.glob(".stop-*"):  # of a process that was killed: this one has the folder's lock
        left.unlink()
    stop = output / f".stop-{os.getpid()}"
    try:
        yield stop
    finally:
        stop.unlink(missing_ok=True)


def _submit(pool: Executor, run: SweepRun, output: Path, stop: Path) -> Future[str]:
    """Hand a run to the engine, with places that mean the same in other folders."""
    config, folder = _write(run, output)
    log, until = (str(place.absolute()) for place in (output / f"{run.name}.log", stop))
    return pool.submit(train_there, config, log, folder, until, _seen_from(run.config))


def _seen_from(config: TrainConfig) -> str | None:
    """The folder that relative paths of a config are seen from; None where it has none."""
    start = config.model.start
    paths = [config.data.text.path, config.data.images.path, start if Path(start).exists() else ""]
    return os.getcwd() if any(path and not path_of(path).is_absolute() for path in paths) else None


def _submit_stack(
    pool: Executor, runs: list[SweepRun], output: Path, stop: Path, documents: Path, device: str
) -> Future[str]:
    """The same for runs that train side by side, with one log, that of the first."""
    configs, folders = map(list, zip(*(_write(run, output) for run in runs), strict=True))
    log, until, made = (str(place.absolute()) for place in (output / f"{runs[0].name}.log", stop, documents))
    return pool.submit(train_stack_there, configs, log, folders, until, made, device)


def _write(run: SweepRun, output: Path) -> tuple[str, str]:
    """The config of a run as a file, and its folder."""
    config, folder = output / f"{run.name}.yaml", Path(run.config.output).absolute()
    if config.exists() and not _is_config_of(config, run.name):
        raise UserError(f"{config} is another file, which the config of a run would overwrite; give another output.")
    write_config(replace(run.config, output=str(folder)), config)
    return str(config.absolute()), str(folder)


def _is_config_of(path: Path, name: str) -> bool:
    """Whether a file is the config that a sweep wrote for a run of this name, wherever its folder is now."""
    try:
        return Path(str(read_tree(path).get("output") or "")).name == name
    except UserError:
        return False


def _failures(together: list[SweepRun], sentence: str) -> dict[str, str]:
    """What to say of runs that ended with a sentence; where one of several failed, the others may be done."""
    failed = together if len(together) == 1 else [run for run in together if not is_finished(run)]
    return {run.name: sentence for run in failed} if sentence else {}


@contextmanager
def _documents(output: Path) -> Iterator[Path]:
    """A folder for the documents that stacks of runs share; it is gone when they have ended."""
    for left in output.glob(".documents-*"):  # of a process that was killed: this one has the folder's lock
        shutil.rmtree(left, ignore_errors=True)
    folder = output / f".documents-{os.getpid()}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def stacks(runs: Sequence[SweepRun]) -> list[list[SweepRun]]:
    """Runs that differ in seeds and rates alone, together, in the order of the first of each."""
    found: dict[str, list[SweepRun]] = {}
    for run in runs:
        recipe = replace(run.config.recipe, seed=0, learning_rate=0.0)
        alike = replace(run.config, output="", recipe=recipe, data=replace(run.config.data, seed=0))
        found.setdefault(repr(alike), []).append(run)
    return list(found.values())


def _outcome(future: Future[str], pool: Executor) -> str:
    """What `train_there` said; of a worker that died too often, that it did.

    Raises:
        UserError: the scheduler is gone, and all runs with it; they go on at their last checkpoints.
    """
    try:
        return future.result()
    except Exception as error:
        require_scheduler(error, pool)
        return f"its worker ended ({type(error).__name__}: {error})"


def _describe_running(pending: list[SweepRun], blind: bool) -> str:
    """How far the runs are that train now: step and, but for `blind`, loss, tokens per second and time left of each."""
    running = [(run, lock_holder(Path(run.config.output))) for run in pending]
    parts = [
        f"{run.name} at step {at.step:,} of {at.steps:,}" + ("" if blind else f", {at.message}")
        for run, at in running
        if at and at.step
    ]
    return "; ".join(parts) or f"{len(pending)} to go"


def _row(run: SweepRun, failure: str) -> dict[str, Any]:
    folder = Path(run.config.output)
    if is_finished(run):  # also where it was refused here, since another process trained it
        status, failure = "done", ""
    else:
        begun = _last_step(folder) or steps_in(folder / "checkpoints")
        status = "failed" if failure else "running" if lock_holder(folder) else "stopped" if begun else "waiting"
    row: dict[str, Any] = {"name": run.name, "status": status, "message": failure} | run.keys
    # Of a model that a run starts from the preset says nothing.
    row["family"] = "" if run.config.model.start else preset(run.config.model.preset).family
    records = _records(folder)
    if not records:
        return row
    if status != "done" and (other := _of_another(run)):
        return row | {"message": row["message"] or other}
    losses = [record["loss"] for record in records if "loss" in record]
    tail = losses[-max(1, len(losses) // 10) :]
    row |= {"steps": records[-1]["step"], "tokens": records[-1]["tokens"]}
    row |= {"loss": sum(tail) / len(tail)} if tail else {}
    measured: dict[str, Any] = {}
    if status == "done":  # what an earlier sitting measured besides, by other settings, is not of the end
        records = [record for record in records if record["step"] == records[-1]["step"]]
    for record in records:
        for key in ("validation_loss", "bits_per_byte", "image_accuracy"):
            if key in record:
                measured[key] = record[key]
        for examples, patterns in record.get("accuracy", {}).items():
            measured |= {accuracy_column(examples, pattern): share for pattern, share in patterns.items()}
    row |= measured
    if status == "done":
        try:
            row |= _size(run, folder, row["tokens"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            row["message"] = f"its size cannot be read ({error})"
    return row | made_with(read_records(folder / "history.jsonl")[0])


def _of_another(run: SweepRun) -> str:
    """What to say where the folder of a run has measurements of another config; "" if they are its own."""
    folder = Path(run.config.output)
    if not (folder / "config.yaml").is_file():
        return ""
    try:
        saved, planned = _saved(run), run.config
        # What the budgets of tokens came to in this run, of the phases that have the same.
        settled = dict(enumerate(saved.data.phases))
        phases = tuple(
            replace(phase, steps=settled[n].steps) if n in settled and 0 < phase.tokens == settled[n].tokens else phase
            for n, phase in enumerate(planned.data.phases)
        )
        planned = replace(planned, data=replace(planned.data, phases=phases))
        check_resumable(saved, planned, _last_step(folder), folder)
    except UserError as error:
        return f"nothing is shown of it: {error}"
    return ""


def _size(run: SweepRun, folder: Path, tokens: float) -> dict[str, Any]:
    from safetensors import safe_open

    parameters = 0
    for path in (folder / "model").glob("*.safetensors"):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (it is not a mapping)
                size = 1
                for edge in tensors.get_slice(name).get_shape():
                    size *= edge
                parameters += 0 if "embed" in name else size
    fields = json.loads((folder / "model" / "config.json").read_text(encoding="utf-8"))
    timings = json.loads((folder / "timings.json").read_text(encoding="utf-8"))
    if "image_size" in fields:
        row: float = patches(fields)
        tokens = tokens * row
    else:
        settled = read_config(folder / "config.yaml")
        row = tokens / sum(phase.steps * phase.batch_size for phase in settled.data.phases)
    flops = training_flops(fields, parameters, tokens, row)
    return {"parameters": parameters, "flops": flops, "seconds": timings["seconds"]}


def _records(folder: Path) -> list[dict[str, Any]]:
    """What a run measured as far as it is; lines that cannot be read are left out of the table."""
    return read_records(folder / "metrics.jsonl", needed=("step", "tokens"))[0]


def _last_step(folder: Path) -> int:
    records = _records(folder)
    return int(records[-1]["step"]) if records else 0
