"""The lock of a run: one process at a time trains in a folder, and others can see and stop it.

The process holds a lock of the operating system on a file in the folder. The lock ends with the process, however that
ends, so it is never stale. The file says which process holds it and how far the run is.
"""

from __future__ import annotations

import errno
import json
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from socket import gethostname

from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, silent

try:
    import fcntl
except ImportError:  # Windows has no such locks: there no process is seen, and none is kept out
    fcntl = None  # type: ignore[assignment]

FILE = ".training"
WIDTH = 512
SECONDS_BETWEEN_WRITES = 0.5


@dataclass(frozen=True)
class LockHolder:
    """The process that trains in a folder, and how far it is."""

    process: int
    step: int = 0
    steps: int = 0
    message: str = ""
    host: str = ""
    """The machine that it runs on; others may see the lock in a folder that they share."""

    @property
    def elsewhere(self) -> str:
        """The other machine that it runs on, where its number names another process; empty if that is this one."""
        return "" if self.host == gethostname() else self.host


@contextmanager
def lock_run(folder: Path, *, file: str = FILE, way_out: str = "choose another output folder") -> Iterator[Progress]:
    """Hold the lock of `folder` while the block runs; yield the progress callback that writes how far the run is.

    Args:
        folder: of the run.
        file: the name of the lock in it, where a folder holds more than one run.
        way_out: what else to do where another process has it.

    Raises:
        UserError: another process trains there, or nothing can be written there.
    """
    if fcntl is None:
        yield silent
        return
    try:
        handle = os.open(folder / file, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise UserError(
            f"Nothing can be written to {folder} ({error.strerror}); choose another output folder."
        ) from error
    try:
        _take(handle, folder, way_out)
        written = 0.0

        def publish(done: int, total: int, message: str = "") -> None:
            nonlocal written
            if time.monotonic() - written > SECONDS_BETWEEN_WRITES:
                written = time.monotonic()
                # One write of one length: a reader never sees half of two.
                os.pwrite(handle, _written(LockHolder(os.getpid(), done, total, message, gethostname())), 0)

        publish(0, 0)
        written = 0.0
        yield publish
    finally:
        os.close(handle)


@contextmanager
def adding_to(table: Path) -> Iterator[None]:
    """Hold the lock of a table for the moment in which rows are added to it; waits for another process that does."""
    table.parent.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    with (table.parent / f".{table.name}.lock").open("ab") as handle:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def lock_holder(folder: Path) -> LockHolder | None:
    """The process that trains in `folder` now, if one does."""
    if fcntl is None or not (folder / FILE).is_file():
        return None
    with (folder / FILE).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            found = _read(file.read(WIDTH))
            return found if found.elsewhere or _has_open(found.process, folder / FILE) else replace(found, process=0)
        except OSError:  # a file system without locks
            return None
    return None


def _has_open(process: int, file: Path) -> bool:
    """Whether a process has the lock's file open, so that its number is not one which somebody wrote there."""
    if not Path("/proc/self/fd").is_dir():  # no way to tell
        return True
    with suppress(OSError):
        for link in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                if link.samefile(file):
                    return True
    return False


def _take(handle: int, folder: Path, way_out: str) -> None:
    # `lock_holder` takes the lock for an instant, too.
    for _ in range(20):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        except OSError as error:  # as on Windows
            warnings.warn(
                f"{folder} is on a disk without locks ({error.strerror}): that another process trains in it is not "
                "seen, so start no second one there.",
                stacklevel=4,
            )
            return
        else:
            return
    other = _read(os.pread(handle, WIDTH, 0))
    where = f" on {other.elsewhere}" if other.elsewhere else ""
    raise UserError(f"Process {other.process}{where} is training in {folder} now; stop it there, or {way_out}.")


def _written(holder: LockHolder) -> bytes:
    """The text of the file; of a long message, the beginning that fits."""
    while len(text := json.dumps(asdict(holder)).encode()) > WIDTH and holder.message:
        holder = replace(holder, message=holder.message[: len(holder.message) // 2])
    return text.ljust(WIDTH)


def _read(text: bytes) -> LockHolder:
    try:
        found = LockHolder(**json.loads(text))
    except (ValueError, TypeError):  # taken this instant, and nothing written yet
        return LockHolder(0)
    numbers, words = (found.process, found.step, found.steps), (found.message, found.host)
    whole = all(type(each) is int for each in numbers) and all(isinstance(each, str) for each in words)
    return found if whole else LockHolder(0)
