"""An analysis of a set of examples on a Dask cluster: its units of work, such as examples, go to the workers.

Every worker reads the model for itself, begins the same analysis, makes the units that it was asked for and stops
there. The rest (intervals, controls, the order of sums over examples) is done here, as ever. A worker that dies loses
what it was making, which goes to another. What comes back is read with pickle, so a cluster must be one that you trust.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dcinterp.checkpoints.load import load
from dcinterp.checkpoints.names import OWN, PLANTED, shipped_models
from dcinterp.results.registry import ANALYSES
from dcinterp.support import extensions
from dcinterp.support.cluster import DASK, cluster, require_own_jobs, require_scheduler, wait_for_workers
from dcinterp.support.digest import sources_digest
from dcinterp.support.errors import UserError
from dcinterp.support.paths import path_of
from dcinterp.support.progress import Progress, Unit, silent
from dcinterp.support.source_commit import SOURCES

if TYPE_CHECKING:
    from dcinterp.results.result import Result

JOBS = 2
RETRIES = 3
MODELS = ("other",)
"""Arguments that name a further model."""
CHUNKS = 4
"""That a worker gets, one after the other: many enough that none waits long for the last."""


@dataclass(frozen=True)
class Work:
    """What a worker must know to begin: the analysis, the model by its name or folder, and the arguments.

    dtype, tokenizer: as of `dcinterp.load`, the type by its name.
    """

    analysis: str
    model: str
    arguments: Mapping[str, Any]
    dtype: str | None = None
    tokenizer: str | None = None

    def run(self, progress: Progress) -> Result:
        """The analysis from its beginning; a process reads the model once."""
        bridge = _model(self.model, self.dtype, self.tokenizer, _stamp(self.model))
        return ANALYSES[self.analysis].function(bridge, **self.arguments, progress=progress)

    @property
    def from_anywhere(self) -> Work:
        """The same with whole paths, as workers may have been started in other folders."""
        arguments = dict(self.arguments)
        for name in MODELS:
            if arguments.get(name):
                arguments[name] = _from_anywhere(arguments[name])
        text = arguments.get("text")
        if text and not _is_packages(text) and path_of(text).exists():
            arguments["text"] = str(path_of(text).absolute())
        tokenizer = self.tokenizer and _from_anywhere(self.tokenizer)
        return replace(self, model=_from_anywhere(self.model), arguments=arguments, tokenizer=tokenizer)


def _from_anywhere(model: str) -> str:
    """The name of a model; of a folder or file that is here, with its whole path."""
    name = model.removeprefix(OWN)
    if name in shipped_models() or name.startswith(PLANTED) or not path_of(name).exists():
        return model
    return f"{OWN * model.startswith(OWN)}{path_of(name).absolute()}"


def _is_packages(text: str) -> bool:
    from dcinterp.train.data.files_by_hash import is_packages  # not for the help

    return is_packages(text)


def analyse_on(engine: str, work: Work, *, jobs: int | None = None, progress: Progress = silent) -> Result:
    """Run an analysis of many examples on a cluster; the result is that of one process, up to rounding.

    Args:
        engine: "dask" for a cluster on this machine, "dask:ADDRESS" or "dask:FILE.json" for one that runs already.
        work: an analysis that is declared with `in_units`; every worker must find the model under its name.
        jobs: workers of the cluster on this machine; 2 when None.
        progress: called after each part of the work.

    Raises:
        UserError: the analysis is not one of units, there is no such engine or it has its own workers, or as the
            analysis raises.
    """
    entry, (kind, colon, address) = ANALYSES[work.analysis], engine.partition(":")
    if kind != DASK or (colon and not address):
        raise UserError(f"There is no engine {engine!r} for analyses; choose dask, or dask:ADDRESS of a scheduler.")
    if not entry.in_units:
        raise UserError(f"{entry.title} does not go over examples, so there is nothing to hand out; leave engine out.")
    require_own_jobs(engine, jobs)
    jobs = jobs or JOBS
    with cluster(address, jobs) as client, client.get_executor(retries=RETRIES, pure=False) as pool:
        workers = wait_for_workers(client, progress) if address else jobs
        return work.run(Handing(pool, workers, work, progress))


class Handing:
    """The progress callback of the process that asks: it hands units out, and knows what came back."""

    def __init__(self, pool: Executor, workers: int, work: Work, progress: Progress = silent) -> None:
        self.pool, self.workers, self.work, self.progress = pool, workers, work, progress
        self.known: dict[str, Any] = {}

    def __call__(self, done: int, total: int, message: str = "") -> None:
        self.progress(done, total, message)

    def keep_all(self, units: Sequence[Unit[Any]], before: int, later: int) -> list[Any]:
        names = [name for name, _ in units]
        total = before + len(names) + later
        parts = list(_parts(names, CHUNKS * self.workers))
        there, code = self.work.from_anywhere, own_code()
        waiting = [self.pool.submit(make_units, there, self.known, code, part) for part in parts]
        found: dict[str, Any] = {}
        try:
            self.progress(before, total, "workers begin")
            for part in as_completed(waiting):
                found |= _units_of(part, self.pool)
                self.progress(before + len(found), total, "on workers")
        finally:
            for part in waiting:
                part.cancel()
        self.known |= found
        if missing := [name for name in names if name not in found]:
            raise UserError(
                f"The workers have no {missing[0]!r}, which is here; they must see the same model and files as this "
                "machine, under the same paths."
            )
        return [found[name] for name in names]


def _units_of(part: Future[dict[str, Any]], pool: Executor) -> dict[str, Any]:
    """What a worker found.

    Raises:
        UserError: the cluster has ended, or its workers have.
    """
    try:
        return part.result()
    except UserError:
        raise
    except Exception as error:
        require_scheduler(error, pool)
        if type(error).__name__ == "KilledWorker":
            raise UserError(
                f"Several workers died with the same part of the work ({error}), as where memory runs out; give them "
                "more, or fewer examples."
            ) from error
        raise


@cache
def own_code() -> str:
    """What numbers are computed by: versions, and a digest of the sources, which change between versions."""
    home = Path(__file__).parents[2]
    files = sorted(file for package in SOURCES for file in (home / package).rglob("*.py"))
    digest = sources_digest((home, file) for file in files)
    version = sys.modules["dcinterp"].__version__
    with_ = filter(None, (extensions.sources(), f"torch {torch.__version__}"))
    return f"dcinterp {version} (sources {digest}) with {', '.join(with_)}"


def make_units(work: Work, known: Mapping[str, Any], code: str, wanted: Sequence[str]) -> dict[str, Any]:
    """What some units of an analysis find; runs in a worker.

    Raises:
        UserError: the worker has other code than the process that asks, whose `own_code` is given.
    """
    if code != own_code():
        raise UserError(f"A worker has {own_code()}, and this machine {code}; give both the same environment.")
    torch.set_num_threads(1)
    try:
        work.run(Making(known, frozenset(wanted)))
    except Made as made:
        return made.found
    raise RuntimeError(f"{work.analysis} ended without its units {', '.join(wanted)}")


class Made(Exception):  # not an error: what a worker was asked for is there
    """Ends the analysis in a worker."""

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__()
        self.found = found


class Making:
    """The progress callback of a worker: known units are taken, those that are wanted made, and then it ends."""

    def __init__(self, known: Mapping[str, Any], wanted: frozenset[str]) -> None:
        self.known, self.wanted = known, wanted

    def __call__(self, done: int, total: int, message: str = "") -> None:
        """Nobody looks."""

    def keep_all(self, units: Sequence[Unit[Any]], before: int, later: int) -> list[Any]:
        if all(name in self.known for name, _ in units):
            return [self.known[name] for name, _ in units]
        raise Made({name: make() for name, make in units if name in self.wanted})


@lru_cache(maxsize=1)
def _model(name: str, dtype: str | None, tokenizer: str | None, stamp: object) -> Any:
    """A model that the process reads once; `stamp` changes with its files."""
    return load(name, dtype=getattr(torch, dtype) if dtype else None, tokenizer=tokenizer)


def _stamp(name: str) -> tuple[tuple[str, int], ...]:
    """When the files of a model's folder were written; nothing of other names."""
    place = Path(name.removeprefix(OWN))
    files = sorted(place.iterdir()) if place.is_dir() else [place] if place.is_file() else []
    return tuple((str(file), file.stat().st_mtime_ns) for file in files)


def _parts(names: Sequence[str], count: int) -> Iterator[list[str]]:
    """The names in `count` parts of nearly one size, or fewer."""
    size = -(-len(names) // count)
    for start in range(0, len(names), max(1, size)):
        yield list(names[start : start + size])
