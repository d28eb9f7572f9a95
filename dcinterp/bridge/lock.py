"""The lock under which a bridge runs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components import BlockBridge


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


class LockedBridge(TransformerBridge):
    """A `TransformerBridge` that runs for one thread at a time.

    Runs hold `lock`, because hooks belong to the model and those of two threads would mix. Hold it yourself around
    several calls that belong together (`with bridge.lock:`).
    """

    lock: RunLock

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.take_lock()

    def take_lock(self) -> None:
        """Give the bridge a lock of its own, past nn.Module's bookkeeping."""
        object.__setattr__(self, "lock", RunLock())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, one thread at a time."""
        with self.lock:
            return super().forward(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, one thread at a time."""
        with self.lock:
            return super().generate(*args, **kwargs)

    def run_with_cache(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, one thread at a time."""
        with self.lock:
            return super().run_with_cache(*args, **kwargs)

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, one thread at a time."""
        with self.lock:
            return super().run_with_hooks(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A model of its own: TransformerLens's captures, which would stay with the first one's blocks, come anew."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        for part in twin.modules():
            if isinstance(part, BlockBridge):
                for handle in part._capture_hook_handles:
                    handle.remove()
                part._capture_hook_handles.clear()
                part._capture_hooks_wired = False
        return twin

    @contextmanager
    def hooks(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """As in TransformerLens, one thread at a time."""
        with self.lock, super().hooks(*args, **kwargs) as hooked:
            yield hooked
