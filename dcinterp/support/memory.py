"""How much memory is free, and how this process keeps what it has freed."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4
"""The parameters of glibc's mallopt that are set here."""

MEMINFO = Path("/proc/meminfo")


def free_bytes() -> int | None:
    """Memory of this machine that programs could have now; None where the system does not say (Linux does)."""
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = next((line for line in lines if line.startswith("MemAvailable:")), "")
    return int(free.split()[1]) * 1024 if free else None


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Within it, memory that tensors have freed stays with the process and serves the next ones; for glibc alone.

    By default glibc gives blocks of more than 32 MB back to the system at once. A training step that makes logits of a
    large vocabulary gets them anew each time, and the system clears every page of them, which shows in the time of a
    step. Afterwards what is free goes back to the system. Nothing is done where the environment sets up malloc itself
    (MALLOC_* variables, GLIBC_TUNABLES, LD_PRELOAD), or under another C library.
    """
    own = any(name.startswith("MALLOC_") for name in os.environ) or {"GLIBC_TUNABLES", "LD_PRELOAD"} & set(os.environ)
    if own or platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(MMAP_MAX, 0)
    libc.mallopt(TRIM_THRESHOLD, -1)  # never
    libc.mallopt(TOP_PAD, 64 * 2**20)
    try:
        yield
    finally:  # as glibc is by itself once a large block was freed: any of these calls ends its own adapting
        libc.mallopt(MMAP_MAX, 65_536)
        libc.mallopt(MMAP_THRESHOLD, 32 * 2**20)
        libc.mallopt(TRIM_THRESHOLD, 64 * 2**20)
        libc.mallopt(TOP_PAD, 128 * 2**10)
        libc.malloc_trim(0)
