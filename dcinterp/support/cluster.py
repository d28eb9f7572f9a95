"""A Dask cluster: one of this machine, or one that runs already."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress

DASK = "dask"
POLL_SECONDS = 0.5
CONNECT_SECONDS = 30.0
"""That a scheduler may take to start: in a Slurm job it starts beside the work."""
SETTLED_SECONDS = 2.0
"""Without a further worker, after which those that are there are counted: a job starts its workers one by one."""
NO_WORKER = "no worker has come to the cluster yet"
SCHEDULER_GONE = "The scheduler of the cluster is gone; start one with workers, and give the same command again."
LEAVE_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""Run by workers of this machine, whom Ctrl-C of a terminal reaches too: who waits for them would wait for ever."""


def require_own_jobs(engine: str, jobs: int | None) -> None:
    """Refuse a number of workers for a cluster that runs already and has its own.

    Args:
        engine: as people type it.
        jobs: what was asked for; None where nothing was.

    Raises:
        UserError: as said.
    """
    kind, _, address = engine.partition(":")
    if kind == DASK and address and jobs is not None:
        raise UserError(
            f"The cluster at {address} has the workers that it has, each with as many runs at a time as threads; leave "
            "jobs out, or start it with other workers."
        )


@contextmanager
def cluster(address: str, jobs: int) -> Iterator[Any]:
    """A client of a Dask cluster while the block runs.

    Args:
        address: of a scheduler, or its file; "" for a cluster on this machine, which ends with the block.
        jobs: workers of that one, each a process with one thread.

    Raises:
        UserError: Dask is not installed, or no scheduler answers at the address.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise UserError("The engine dask needs Dask: pip install 'dcinterp[cluster]'.") from error
    if not address:
        with (
            LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None, preload=[LEAVE_CTRL_C]) as local,
            Client(local) as own,
        ):
            yield own
        return
    end, file = time.monotonic() + CONNECT_SECONDS, Path(address)
    place: dict[str, str] = {"scheduler_file": address} if file.suffix == ".json" else {"address": address}
    try:
        while "scheduler_file" in place and not file.is_file():  # Dask itself would wait for it for ever
            if time.monotonic() > end:
                raise OSError("there is no such file")
            time.sleep(POLL_SECONDS)
        client = Client(**place, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, AssertionError) as error:
        raise UserError(
            f"No Dask scheduler answers at {address} ({error}); start one with `dask scheduler`."
        ) from error
    with client:
        yield client


def require_scheduler(error: BaseException, pool: Executor) -> None:
    """Refuse to go on where work that nobody cancelled ended because the scheduler did.

    Args:
        error: what the work ended with.
        pool: where it was.

    Raises:
        UserError: as said.
    """
    cancelled = type(error).__name__ in ("CancelledError", "FutureCancelledError", "FuturesCancelledError")
    if cancelled and getattr(getattr(pool, "_client", None), "status", "") != "running":
        raise UserError(SCHEDULER_GONE) from error


def wait_for_workers(client: Any, progress: Progress) -> int:
    """How many workers the cluster of a client has, once one has come and no further one comes for a moment.

    Args:
        client: what `cluster` gave.
        progress: told how many have come, again and again; it may raise to give up.
    """
    count, since = 0, time.monotonic()
    asked = client.submit(int, pure=False)  # clusters that start workers on demand start none without work
    while not count or time.monotonic() - since < SETTLED_SECONDS:
        progress(0, 0, f"{count} worker{'s have' if count > 1 else ' has'} come" if count else NO_WORKER)
        time.sleep(POLL_SECONDS)
        if (now := len(client.ncores())) != count:
            count, since = now, time.monotonic()
    asked.release()
    return count


def require_seen(client: Any, folder: Path) -> None:
    """Refuse a cluster with workers that do not see a folder of this machine.

    Raises:
        UserError: there is such a worker; the message names it.
    """
    seen = client.run(os.path.isdir, str(folder), on_error="return")  # of one that leaves meanwhile, its error
    if blind := sorted(worker for worker, there in seen.items() if there is False):
        raise UserError(
            f"{len(blind)} of the {len(seen)} workers do not see {folder}, such as {blind[0]}; start workers where it "
            "has the same path, and end the others."
        )
