"""An analysis of a set of examples on a Dask cluster: its units of work, such as examples, go to the workers.

Every worker reads the model for itself, begins the same analysis, makes the units that it was asked for and stops
there. The rest (intervals, controls, the order of sums over examples) is done here, as ever. A worker that dies loses
what it was making, which goes to another. What comes back is read with pickle, so a cluster must be one that you trust.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from dcinterp.checkpoints.load import load
from dcinterp.results.registry import ANALYSES
from dcinterp.support.cluster import cluster
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, Unit, silent

if TYPE_CHECKING:
    from dcinterp.results.result import Result

ENGINE = "dask"
RETRIES = 3
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
        bridge = _model(self.model, self.dtype, self.tokenizer)
        return ANALYSES[self.analysis].function(bridge, **self.arguments, progress=progress)


def analyse_on(engine: str, work: Work, *, jobs: int = 2, progress: Progress = silent) -> Result:
    """Run an analysis of many examples on a cluster; the result is that of one process, up to rounding.

    Args:
        engine: "dask" for a cluster on this machine, "dask:ADDRESS" or "dask:FILE.json" for one that runs already.
        work: an analysis that is declared with `in_units`; every worker must find the model under its name.
        jobs: workers of the cluster on this machine.
        progress: called after each part of the work.

    Raises:
        UserError: the analysis is not one of units, there is no such engine, or as the analysis raises.
    """
    entry, (kind, _, address) = ANALYSES[work.analysis], engine.partition(":")
    if kind != ENGINE:
        raise UserError(f"There is no engine {engine!r} for analyses; choose dask, or dask:ADDRESS of a scheduler.")
    if not entry.in_units:
        raise UserError(f"{entry.title} does not go over examples, so there is nothing to hand out; leave engine out.")
    with cluster(address, jobs) as client, client.get_executor(retries=RETRIES, pure=False) as pool:
        return work.run(Handing(pool, max(1, len(client.ncores())), work, progress))


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
        waiting = [self.pool.submit(make_units, self.work, self.known, part) for part in parts]
        found: dict[str, Any] = {}
        try:
            self.progress(before, total, "workers begin")
            for part in as_completed(waiting):
                found |= part.result()
                self.progress(before + len(found), total, "on workers")
        finally:
            for part in waiting:
                part.cancel()
        self.known |= found
        return [found[name] for name in names]


def make_units(work: Work, known: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """What some units of an analysis find; runs in a worker."""
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
def _model(name: str, dtype: str | None, tokenizer: str | None) -> Any:
    return load(name, dtype=getattr(torch, dtype) if dtype else None, tokenizer=tokenizer)


def _parts(names: Sequence[str], count: int) -> Iterator[list[str]]:
    """The names in `count` parts of nearly one size, or fewer."""
    size = -(-len(names) // count)
    for start in range(0, len(names), max(1, size)):
        yield list(names[start : start + size])
