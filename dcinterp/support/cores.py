"""How many cores this process may use."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Those that it was given, which on a cluster are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
