"""Where the runs of a sweep run: in processes of this machine, or on the workers of a Dask cluster.

    local                   processes of this machine, as many at a time as `--jobs` says
    dask                    a Dask cluster on this machine, with as many workers
    dask:tcp://HOST:8786    a cluster that runs already, by the address of its scheduler
    dask:/path/of.json      the same, by the scheduler's file, as Slurm jobs pass it on
    stacked:cuda            on one GPU, with runs that differ in seeds and rates alone side by side in one model
    stacked:cpu             the same step by step on a CPU, such as from a checkpoint that a GPU left

Every worker must see the folder of the sweep under the same path, since runs, checkpoints and the table are files, and
the one that it was started in where a config has a relative path. A worker that dies loses nothing: its runs go to
another, which goes on at their last checkpoint. Each run is one process, whatever launcher started the worker.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from dcinterp.support.cluster import DASK, cluster, require_seen, wait_for_workers
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, silent
from dcinterp.train.control.run_lock import lock_holder
from dcinterp.train.control.signals import child_environment

LOCAL, STACKED = "local", "stacked"
POLL_SECONDS = 0.5
ORPHAN_SECONDS = 120.0
"""How long a run of a worker that died may take to stop at a checkpoint."""
BLIND_SECONDS = 30.0
"""That a worker which does not see a run waits before it says so: it would take all runs before others have time."""
RETRIES = 3
STOPPED = "stopped"
LAUNCHED = ("PMI_", "PMIX_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_")
"""Variables by which launchers such as srun tell a process that it is one of several; a run is none of them."""
LAUNCHED_ONE = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
DASKS_TRIM = {"MALLOC_TRIM_THRESHOLD_": "65536"}
"""What Dask sets for its workers, and what would keep a run from keeping the memory that its tensors free."""


@contextmanager
def open_engine(engine: str, jobs: int, folder: Path | None = None, progress: Progress = silent) -> Iterator[Executor]:
    """What runs `train_there` or `train_stack_there`, one after another; what waits when the block ends is dropped.

    Args:
        engine: as above.
        jobs: runs at a time, of the local ones; a cluster that runs already has as many as its workers' threads.
        folder: that all workers must see.
        progress: called while no worker of a cluster has come.

    Raises:
        UserError: there is no such engine or device, Dask is not installed, no scheduler answers at the address, or a
            worker does not see the folder.
    """
    kind, colon, address = engine.partition(":")
    if kind == DASK and colon and not address:
        raise UserError("The engine 'dask:' has no address; give that of a scheduler or its file, or dask alone.")
    if kind == STACKED:
        _require_device(address)
    if (kind == LOCAL and not address) or kind == STACKED:
        pool = ThreadPoolExecutor(jobs)
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)
        return
    if kind != DASK:
        raise UserError(
            f"There is no engine {engine!r}; choose local, stacked:cuda, dask, or dask:ADDRESS of a scheduler."
        )
    with cluster(address, jobs) as client:
        if address:
            wait_for_workers(client, progress)
        if folder is not None:
            require_seen(client, folder.absolute())
        remote = client.get_executor(retries=RETRIES, pure=False)
        try:
            yield remote
        finally:
            remote.shutdown(wait=False)


def _require_device(name: str) -> None:
    import torch

    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise UserError(f"The engine 'stacked:{name}' names no device; choose stacked:cuda, or stacked:cpu.") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(f"The engine 'stacked:{name}' needs a GPU, and torch sees none here; choose local.")


def train_there(config: str, log: str, folder: str, stop: str, working: str | None = None) -> str:
    """Train one run to its end in a process of its own, going on at its last checkpoint.

    Args:
        config, log: files of the run, in the folder of the sweep.
        folder: of the run.
        stop: a file; when it is there, the run stops at a checkpoint.
        working: the folder that relative paths of the config are seen from; the worker's own when None.

    Returns:
        The sentence that says why it failed; empty when it is done.
    """
    blind = ""
    if not Path(config).is_file():
        blind = f"the worker does not see {config}; all workers must see the folder of the sweep under one path"
    elif working is not None and not Path(working).is_dir():
        blind = (
            f"the worker does not see {working}, from where the sweep was started; start it where all workers see it"
        )
    if blind:
        end = time.monotonic() + BLIND_SECONDS
        while time.monotonic() < end and not _is_there(stop):
            time.sleep(POLL_SECONDS)
        return blind
    _let_orphan_end(Path(folder))
    return _run([sys.executable, "-m", "dcinterp", "train", config, "--resume"], log, stop, working)


def train_stack_there(configs: list[str], log: str, folders: list[str], stop: str, documents: str, device: str) -> str:
    """The same for runs that are trained side by side; the very same runs go on where they were stopped.

    Args:
        configs, folders: of the runs, in one order.
        log, stop: as above, for all of them.
        documents: folder of documents that were made before.
        device: where they train.
    """
    for folder in folders:
        _let_orphan_end(Path(folder))
    # A worker, so that documents are made or read while the device is busy.
    command = [sys.executable, "-m", "dcinterp.train.loop.stacked", *configs, "--workers", "1"]
    return _run([*command, "--documents", documents, "--device", device], log, stop)


def _run(command: list[str], log: str, stop: str, working: str | None = None) -> str:
    if _is_there(stop):
        return STOPPED
    before = Path(log).stat().st_size if Path(log).is_file() else 0
    with Path(log).open("ab") as file:
        child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=_environment(), cwd=working)
        try:
            while (code := child.poll()) is None:
                if _is_there(stop):
                    child.terminate()
                time.sleep(POLL_SECONDS)
        except BaseException:  # nobody would watch it
            child.terminate()
            raise
    if code == 0:
        return ""
    lines = _lines(Path(log), before)
    said = _own_words(lines)
    if not said and _is_there(stop):
        return STOPPED
    if code < 0:
        killed = signal.Signals(-code).name
        hint = ", as where memory runs out" if killed == "SIGKILL" else ""
        return f"was killed ({killed}{hint}); see {log}"
    return said or (lines[-1].strip() if lines else f"ended with code {code}; see {log}")


def _is_there(stop: str) -> bool:
    """Whether the file is there that stops runs; while a shared disk does not answer, it is not."""
    with suppress(OSError):
        return Path(stop).exists()
    return False


def _let_orphan_end(folder: Path) -> None:
    """Wait for a process that trains there still: its worker died, and it is stopping."""
    end = time.monotonic() + ORPHAN_SECONDS
    while lock_holder(folder) is not None and time.monotonic() < end:
        time.sleep(POLL_SECONDS)


def _own_words(lines: Sequence[str]) -> str:
    """The sentence by which a run said that it could not go on; nothing where it said none."""
    own = [line for line in lines if re.match("dcinterp: (?!note: )", line)]
    return own[-1].removeprefix("dcinterp: ").strip() if own else ""


def _lines(log: Path, before: int) -> list[str]:
    """What a run wrote, after the bytes of earlier attempts."""
    text = log.read_bytes()[before:].decode(errors="replace")
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()]


def _environment() -> dict[str, str]:
    """That of a run which is one process, whatever launcher started the worker."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(LAUNCHED) and name not in LAUNCHED_ONE and DASKS_TRIM.get(name) != value
    }
    return child_environment(kept)
