"""The lock under which a bridge runs."""

from __future__ import annotations

import threading
from typing import Any


class RunLock:
    """A re-entrant lock that a deep copy of its owner does not share."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> RunLock:
        return RunLock()
