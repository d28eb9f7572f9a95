"""Fair timing on a shared machine: candidates take turns, and what counts is the ratio of their medians."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dcinterp.support.progress import Progress, silent


@dataclass(frozen=True)
class Timing:
    """One candidate: its median time in seconds, that as a multiple of the baseline's, and the fastest round's.

    `peak` is the resident memory in bytes that one run added at its highest; None where the system does not tell.
    """

    name: str
    seconds: float
    ratio: float
    fastest: float
    peak: int | None


@dataclass(frozen=True)
class Measurement:
    """The candidates at one shape."""

    label: str
    what: str
    threads: int
    timings: tuple[Timing, ...]

    def record(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return asdict(self)


def race(
    candidates: Mapping[str, Callable[[], object]], baseline: str, *, rounds: int = 7, progress: Progress = silent
) -> tuple[Timing, ...]:
    """Run every candidate once for its memory and then `rounds` times in turn; ratios are to `baseline`'s median."""
    peaks = {name: peak_memory(run) for name, run in candidates.items()}
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds):
        for name, run in candidates.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
        progress(number + 1, rounds, "")
    medians = {name: median(times) for name, times in seconds.items()}
    return tuple(
        Timing(name, taken, taken / medians[baseline], min(seconds[name]), peaks[name])
        for name, taken in medians.items()
    )


def peak_memory(run: Callable[[], object]) -> int | None:
    """Highest resident memory during a second `run`, less what was resident before it, in bytes (Linux only)."""
    run()
    gc.collect()
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        ctypes.CDLL(None).malloc_trim(0)
        clear.write_text("5")  # the highest resident size starts again from here
        before = _field(status, "VmRSS")
        run()
        return max(0, _field(status, "VmHWM") - before)
    except (OSError, AttributeError, TypeError):
        return None


def _field(status: Path, name: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])
