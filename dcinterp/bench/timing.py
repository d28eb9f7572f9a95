"""Fair timing on a shared machine: candidates take turns, and what counts is the ratio of their medians."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from dcinterp.progress import Progress, silent


@dataclass(frozen=True)
class Timing:
    """One candidate: its median time in seconds, and that as a multiple of the baseline's."""

    name: str
    seconds: float
    ratio: float


def race(
    candidates: Mapping[str, Callable[[], object]], baseline: str, *, rounds: int = 7, progress: Progress = silent
) -> list[Timing]:
    """Run every candidate once to warm up and then `rounds` times in turn; ratios are to `baseline`'s median."""
    for run in candidates.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds):
        for name, run in candidates.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
        progress(number + 1, rounds, "")
    medians = {name: median(times) for name, times in seconds.items()}
    return [Timing(name, taken, taken / medians[baseline]) for name, taken in medians.items()]
