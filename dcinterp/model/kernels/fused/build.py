"""Builds the C++ kernel once and keeps it: nothing to do by hand, and no compiler needed to use the package.

The file lies in `$DCINTERP_CACHE` (default: `dcinterp` in the user's cache folder) under a name made from the source,
the compiler, the flags, the processor and the version of torch, whose OpenMP threads it shares. Processes that start
at the same time wait for one of them to build it.

What lies there runs in this process, so it is loaded only from a folder that nobody else can write, and only if its
size and hash are those that were written down beside it when it was built; anything else is built anew.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dcinterp.model.kernels.fused.arguments import MAKING, STEP, Arguments
from dcinterp.model.kernels.fused.plain import REAL

SOURCE = Path(__file__).parent / "source"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros")
OPENMP = ((("-fopenmp",), ()), (("-fopenmp",), ("-fopenmp",)), ((), ()))
"""Flags to compile and to link with, in the order to try: the first takes the OpenMP that torch has loaded."""
PATIENCE = 50.0
"""Seconds that a first use waits for the compiler, and for other processes that build; then it goes on without."""

log = logging.getLogger(__name__)


class BuildError(Exception):
    """There is no compiler, or it refused."""


class TimeUpError(BuildError):
    """The compiler, or another process that builds, did not end in time."""


@cache
def library() -> ctypes.CDLL | None:
    """The built kernel, or None (said once, in the log) where it cannot be built."""
    try:
        return build()
    except (BuildError, OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        log.warning(
            "The fused attention kernel is not available here (%s); the portable path computes the same, slower.", error
        )
        return None


def kernel_function(way: str, dtype: torch.dtype) -> Any:
    """The kernel's function for a way and a precision, one of `plain.REAL`; only where `library` has found it."""
    kernel = library()
    assert kernel is not None
    return getattr(kernel, f"fused_{way}_{REAL[dtype]}")


@cache
def lanes(dtype: torch.dtype) -> int:
    """How many numbers a vector of this machine holds; only where `library` has found the kernel."""
    kernel = library()
    assert kernel is not None
    return int(kernel.fused_lanes()) * 4 // dtype.itemsize


def build(patience: float | None = None) -> ctypes.CDLL:
    """The kernel of this machine, built now if the cache has none that can be trusted.

    Args:
        patience: seconds to wait for the compiler and for other processes; None for `PATIENCE`.

    Raises:
        BuildError: no compiler, or it failed or took too long; the message says which.
        OSError: the cache cannot be written.
    """
    end = time.monotonic() + (PATIENCE if patience is None else patience)
    compiler = find_compiler()
    with ExitStack() as stack:
        folder = private_folder(stack)
        for number, (compile_with, link_with) in enumerate(OPENMP):
            file = folder / f"fused-{_key(compiler, compile_with + link_with, end)}-{number}.so"
            try:
                if not is_whole(file):
                    with _alone(file.with_suffix(".lock"), end):
                        if not is_whole(file):
                            _remove(file)
                            _compile(compiler, compile_with, link_with, file, end)
                return _load(file)
            except TimeUpError:
                raise
            except (BuildError, OSError) as error:
                with _alone(file.with_suffix(".lock"), end):  # another process may be building it anew
                    _remove(file)
                if number == len(OPENMP) - 1:
                    raise
                log.info("building with %s failed: %s", compile_with + link_with, error)
    raise AssertionError


def find_compiler() -> str:
    """$CXX, g++, clang++ or c++, the first that exists.

    Raises:
        BuildError: none does.
    """
    if os.name != "posix":
        raise BuildError("it is built on Linux and macOS only")
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++")):
        if (path := shutil.which(name)) is not None:
            return path
    raise BuildError("no C++ compiler was found")


def cache_folder() -> Path:
    """Where built kernels lie."""
    base = os.environ.get("DCINTERP_CACHE")
    if base:
        return Path(base)
    user = os.environ.get("XDG_CACHE_HOME")
    return (Path(user) if user else Path.home() / ".cache") / "dcinterp"


def private_folder(stack: ExitStack) -> Path:
    """Where this process may keep what it runs: the cache, a folder in it, or one of its own that `stack` removes.

    Raises:
        OSError: the cache cannot be made.
    """
    first = cache_folder()
    for folder in (first, first / f"private-{os.geteuid()}"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (reason := distrust(folder)) is None:
            return folder
    log.warning(
        "%s, so the fused attention kernel is not kept there but built for this process alone; "
        "give $DCINTERP_CACHE a folder that only you can write.", reason,
    )  # fmt: skip
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dcinterp-")))


def distrust(folder: Path) -> str | None:
    """Why somebody else could put a library into `folder`; None if nobody can (but root, and who has this account)."""
    real = folder.resolve()
    info = real.stat()
    if info.st_uid not in (0, os.geteuid()):
        return f"{real} belongs to another user"
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{real} can be written by others"
    for parent in real.parents:
        info = parent.stat()
        # With the sticky bit, as /tmp has it, only its owner can rename what is ours.
        everybody = info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX
        if everybody or info.st_uid not in (0, os.geteuid()):
            return f"{real} can be replaced by others, who can write {parent}"
    return None


def is_whole(file: Path) -> bool:
    """Whether `file` is a library that was built here, to the last byte: a shorter one would end this process."""
    try:
        record = json.loads(_read_ours(file.with_suffix(".json")))
        content = _read_ours(file)
        return record == _record(content)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        log.info("%s is not used: %s", file, error)
        return False


def _read_ours(file: Path) -> bytes:
    """Raises:
    OSError: it is a link or no file, or others own it or can write it.
    """
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as handle:
        info = os.fstat(handle.fileno())
        ours = stat.S_ISREG(info.st_mode) and info.st_uid in (0, os.geteuid())
        if not ours or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError("others can write it")
        return handle.read()


def _record(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _key(compiler: str, extra: tuple[str, ...], end: float) -> str:
    version = _run([[compiler, "--version"]], end)[0].stdout
    parts = [version, *FLAGS, *extra, torch.__version__, sys.platform, platform.machine(), _processor()]
    files = sorted(path for path in SOURCE.iterdir() if path.suffix in (".h", ".cpp"))
    content = [path.name.encode() + path.read_bytes() for path in files]
    return hashlib.sha256(b"\0".join([*(part.encode() for part in parts), *content])).hexdigest()[:16]


def _processor() -> str:
    """Model and instruction sets: `-march=native` must not outlive a move to another machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _compile(compiler: str, compile_with: tuple[str, ...], link_with: tuple[str, ...], file: Path, end: float) -> None:
    """Write `file` and its record, both whole or not at all; only one process at a time calls this for a file."""
    log.info("building the fused attention kernel, once for this machine")
    prefix = f"building-{file.stem}-"
    for left in file.parent.glob(f"{prefix}*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=prefix) as folder:
        # One process per precision, side by side.
        objects = {real: Path(folder, f"{real}.o") for real in ("float", "double")}
        jobs = _run(
            [
                [compiler, *FLAGS, *compile_with, f"-DREAL={real}", "-c", str(SOURCE / "kernel.cpp"), "-o", str(path)]
                for real, path in objects.items()
            ],
            end,
        )
        for job in jobs:
            if job.returncode:
                raise BuildError(f"{Path(compiler).name} failed: {_first_error(job)}")
        built, record = Path(folder, "kernel.so"), Path(folder, "kernel.json")
        (link,) = _run([[compiler, "-shared", *link_with, *map(str, objects.values()), "-o", str(built)]], end)
        if link.returncode:
            raise BuildError(f"linking failed: {_first_error(link)}")
        record.write_text(json.dumps(_record(built.read_bytes())))
        for path, mode, place in ((built, 0o700, file), (record, 0o600, file.with_suffix(".json"))):
            path.chmod(mode)
            _sync(path)
            os.replace(path, place)
        _sync(file.parent)


def _run(commands: list[list[str]], end: float) -> list[subprocess.CompletedProcess[str]]:
    """Run all at once; whatever happens, none of them, nor what they started, is left running.

    Raises:
        TimeUpError: not all had ended at `end`.
    """
    jobs = []
    try:
        for command in commands:
            # In a group of its own: a compiler is a driver, and to end it is not to end what it drives.
            jobs.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
            )
        done = []
        for job in jobs:
            out, error = job.communicate(timeout=max(0.0, end - time.monotonic()))
            done.append(subprocess.CompletedProcess(job.args, job.returncode, out, error))
        return done
    except subprocess.TimeoutExpired:
        raise TimeUpError(f"{Path(commands[0][0]).name} took too long and was ended") from None
    finally:
        for job in jobs:
            if job.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)
                job.wait()
            for pipe in (job.stdout, job.stderr):
                if pipe is not None:
                    pipe.close()


def _sync(path: Path) -> None:
    """Have `path` on the disk before anything that is done next."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(file: Path) -> None:
    """The library and its record."""
    for path in (file, file.with_suffix(".json")):
        path.unlink(missing_ok=True)


def _first_error(job: subprocess.CompletedProcess[str]) -> str:
    if job.returncode < 0:
        return f"it was ended by signal {-job.returncode}"
    lines = job.stderr.splitlines()
    return next(iter([line for line in lines if "error" in line] or lines or ["no message"])).strip()


def _load(file: Path) -> ctypes.CDLL:
    kernel = ctypes.CDLL(str(file))
    kernel.fused_argument_bytes.restype = kernel.fused_lanes.restype = ctypes.c_long
    if kernel.fused_argument_bytes() != ctypes.sizeof(Arguments) + STEP.size + MAKING.size:
        raise BuildError("the compiler lays out structures in another way than Python")
    for real in REAL.values():
        for way in ("forward", "backward", "decode"):
            function = getattr(kernel, f"fused_{way}_{real}")
            function.argtypes, function.restype = [ctypes.POINTER(Arguments)], None
        for way in ("step", "weights", "weights_back"):
            function = getattr(kernel, f"fused_{way}_{real}")
            function.argtypes, function.restype = [ctypes.c_char_p], None
    return kernel


@contextmanager
def _alone(lock: Path, end: float) -> Iterator[None]:
    """Hold `lock` against other processes; the file stays, so that nobody locks one that is being removed.

    Raises:
        TimeUpError: another process still held it at `end`.
    """
    import fcntl

    with lock.open("w") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeUpError(f"another process did not finish building it: {lock}") from None
                time.sleep(0.05)
        yield
