"""Where the runs of a sweep run: in processes of this machine, or on the workers of a Dask cluster.

    local                   processes of this machine, as many at a time as `--jobs` says
    dask                    a Dask cluster on this machine, with as many workers
    dask:tcp://HOST:8786    a cluster that runs already, by the address of its scheduler
    dask:/path/of.json      the same, by the scheduler's file, as Slurm jobs pass it on
    stacked:cuda            on one GPU, with runs that differ in seeds and rates alone side by side in one model
    stacked:cpu             the same step by step on a CPU, such as from a checkpoint that a GPU left

Every worker must see the folder of the sweep under the same path, since runs, checkpoints and the table are files, and
the one that it was started in where a config has a relative path. A worker that dies loses nothing: its runs go to
another, which goes on at their last checkpoint.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from dcinterp.support.cluster import cluster
from dcinterp.support.errors import UserError
from dcinterp.train.control.run_lock import lock_holder
from dcinterp.train.control.signals import PARENT

LOCAL, DASK, STACKED = "local", "dask", "stacked"
POLL_SECONDS = 0.5
ORPHAN_SECONDS = 120.0
"""How long a run of a worker that died may take to stop at a checkpoint."""
RETRIES = 3
STOPPED = "stopped"


@contextmanager
def open_engine(engine: str, jobs: int) -> Iterator[Executor]:
    """What runs `train_there` or `train_stack_there`, one after another; what waits when the block ends is dropped.

    Args:
        engine: as above.
        jobs: runs at a time, of the local ones; a cluster that runs already has as many as its workers' threads.

    Raises:
        UserError: there is no such engine or device, Dask is not installed, or no scheduler answers at the address.
    """
    kind, _, address = engine.partition(":")
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
    if not Path(config).is_file():
        return f"the worker does not see {config}; all workers must see the folder of the sweep under one path"
    if working is not None and not Path(working).is_dir():
        return f"the worker does not see {working}, from where the sweep was started; start it where all workers see it"
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
    if Path(stop).exists():
        return STOPPED
    before = Path(log).stat().st_size if Path(log).is_file() else 0
    with Path(log).open("ab") as file:
        child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=_environment(), cwd=working)
        while (code := child.poll()) is None:
            if Path(stop).exists():
                child.terminate()
            time.sleep(POLL_SECONDS)
    if code < 0:
        killed = signal.Signals(-code).name
        hint = ", as where memory runs out" if killed == "SIGKILL" else ""
        return STOPPED if Path(stop).exists() else f"was killed ({killed}{hint}); see {log}"
    return "" if code == 0 else _last_words(Path(log), before) or f"ended with code {code}; see {log}"


def _let_orphan_end(folder: Path) -> None:
    """Wait for a process that trains there still: its worker died, and it is stopping."""
    end = time.monotonic() + ORPHAN_SECONDS
    while lock_holder(folder) is not None and time.monotonic() < end:
        time.sleep(POLL_SECONDS)


def _last_words(log: Path, before: int) -> str:
    """What a run said when it ended, after the bytes of earlier attempts: its own sentence, or the last line."""
    text = log.read_bytes()[before:].decode(errors="replace")
    lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("dcinterp: ")), lines[-1] if lines else "")
    return said.removeprefix("dcinterp: ").strip()


def _environment() -> dict[str, str]:
    """The same dcinterp in the child as here, wherever it is started, and no child that outlives this process."""
    here = str(Path(__file__).parents[3])
    paths = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": paths, PARENT: str(os.getpid())}
