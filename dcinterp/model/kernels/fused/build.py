"""Builds the C++ kernel once and keeps it: nothing to do by hand, and no compiler needed to use the package.

The file lies in `$DCINTERP_CACHE` (default: `dcinterp` in the user's cache folder) under a name made from the source,
the compiler, the flags, the processor and the version of torch, whose OpenMP threads it shares. Processes that start
at the same time wait for one of them to build it.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from dcinterp.model.kernels.fused.arguments import Arguments

SOURCE = Path(__file__).parent / "source"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros")
OPENMP = ((("-fopenmp",), ()), (("-fopenmp",), ("-fopenmp",)), ((), ()))
"""Flags to compile and to link with, in the order to try: the first takes the OpenMP that torch has loaded."""

log = logging.getLogger(__name__)


class BuildError(Exception):
    """There is no compiler, or it refused."""


@cache
def library() -> ctypes.CDLL | None:
    """The built kernel, or None (said once, in the log) where it cannot be built."""
    try:
        return build()
    except (BuildError, OSError) as error:
        log.warning(
            "The fused attention kernel is not available here (%s); the portable path computes the same, slower.", error
        )
        return None


def build() -> ctypes.CDLL:
    """The kernel of this machine, built now if the cache has none.

    Raises:
        BuildError: no compiler, or it failed; the message says which.
        OSError: the cache cannot be written.
    """
    compiler = find_compiler()
    for number, (compile_with, link_with) in enumerate(OPENMP):
        file = cache_folder() / f"fused-{_key(compiler, compile_with + link_with)}-{number}.so"
        try:
            if not file.exists():
                with _alone(file.with_suffix(".lock")):
                    if not file.exists():
                        _compile(compiler, compile_with, link_with, file)
            return _load(file)
        except (BuildError, OSError) as error:
            file.unlink(missing_ok=True)
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


def _key(compiler: str, extra: tuple[str, ...]) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    parts = [version, *FLAGS, *extra, torch.__version__, sys.platform, platform.machine(), _processor()]
    content = [path.name + path.read_text() for path in sorted(SOURCE.iterdir())]
    return hashlib.sha256("\0".join(parts + content).encode()).hexdigest()[:16]


def _processor() -> str:
    """Model and instruction sets: `-march=native` must not outlive a move to another machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _compile(compiler: str, compile_with: tuple[str, ...], link_with: tuple[str, ...], file: Path) -> None:
    log.info("building the fused attention kernel, once for this machine")
    with tempfile.TemporaryDirectory(dir=file.parent, prefix="building-") as folder:
        # One process per precision, side by side.
        objects = {real: Path(folder, f"{real}.o") for real in ("float", "double")}
        jobs = [
            subprocess.Popen(
                [compiler, *FLAGS, *compile_with, f"-DREAL={real}", "-c", SOURCE / "kernel.cpp", "-o", path],
                stderr=subprocess.PIPE,
                text=True,
            )
            for real, path in objects.items()
        ]
        said = [job.communicate()[1] for job in jobs]
        failed = [text for job, text in zip(jobs, said, strict=True) if job.returncode]
        if failed:
            raise BuildError(f"{Path(compiler).name} failed: {_first_error(failed[0])}")
        built = Path(folder, "kernel.so")
        link = subprocess.run(
            [compiler, "-shared", *link_with, *objects.values(), "-o", built],
            capture_output=True,
            text=True,
            check=False,
        )
        if link.returncode:
            raise BuildError(f"linking failed: {_first_error(link.stderr)}")
        os.replace(built, file)


def _first_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line] or text.splitlines() or ["no message"]
    return lines[0].strip()


def _load(file: Path) -> ctypes.CDLL:
    kernel = ctypes.CDLL(str(file))
    kernel.fused_argument_bytes.restype = kernel.fused_lanes.restype = ctypes.c_long
    if kernel.fused_argument_bytes() != ctypes.sizeof(Arguments):
        raise BuildError("the compiler lays out structures in another way than Python")
    for real in ("float", "double"):
        for way in ("forward", "backward", "decode"):
            function = getattr(kernel, f"fused_{way}_{real}")
            function.argtypes, function.restype = [ctypes.POINTER(Arguments)], None
    return kernel


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold `lock` against other processes; the file stays, so that nobody locks one that is being removed."""
    import fcntl

    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
