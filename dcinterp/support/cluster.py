"""A Dask cluster: one of this machine, or one that runs already."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dcinterp.support.errors import UserError

POLL_SECONDS = 0.5
CONNECT_SECONDS = 30.0
"""That a scheduler may take to start: in a Slurm job it starts beside the work."""
LEAVE_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""Run by workers of this machine, whom Ctrl-C of a terminal reaches too: who waits for them would wait for ever."""


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
