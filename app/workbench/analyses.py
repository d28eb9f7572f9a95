"""Results in the app: each analysis is run once for its arguments and kept, within a bound on memory.

    scores = analyses.run("attribute_heads", model_name, prompt=prompt, target="fruit")

All sessions share the results: they are frozen, and the key holds everything that made them.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import streamlit as st

from workbench import jobs, models

KEPT_BYTES = 256 * 2**20
SMALL = 5_000_000
"""Parameters; the shipped models have 0.7 million."""


class ResultCache:
    """Results by what made them; the least recently used go when they hold more bytes than allowed."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self.limit, self.bytes = limit, 0
        self._kept: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Any:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: str, result: Any) -> None:
        size = weight(result)
        with self._lock:
            if key in self._kept:
                self.bytes -= self._kept.pop(key)[1]
            self._kept[key] = (result, size)
            self.bytes += size
            while self.bytes > self.limit and len(self._kept) > 1:
                self.bytes -= self._kept.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._kept)


def weight(result: Any) -> int:
    """Bytes that a result holds, roughly: its tensors, and two kilobytes for the rest."""
    size = 2048
    for value in getattr(result, "__dict__", {}).values():
        if hasattr(value, "element_size"):
            size += value.element_size() * value.nelement()
        elif hasattr(value, "__dict__"):
            size += weight(value)
    return size


_cache = ResultCache()


def cache() -> ResultCache:
    """The results that this server keeps."""
    return _cache


def key_of(analysis: str, model: str | None, arguments: dict[str, Any]) -> str:
    """What makes a result: the analysis, the model as it is on disk, and the arguments."""
    return repr((analysis, model, models.stamp(model) if model else 0, sorted(arguments.items())))


def run(analysis: str, model: str | None, /, **arguments: Any) -> Any:
    """The result of an analysis, computed now unless it is kept.

    Args:
        analysis: its name in `dcinterp.results.registry.ANALYSES`.
        model: the name of a model; None for an analysis that takes none.
        arguments: plain data, as the registry has it.

    Raises:
        UserError: an argument does not fit the model.
    """
    key = key_of(analysis, model, arguments)
    kept = _cache.get(key)
    return kept if kept is not None else compute(key, analysis, model, arguments)


def fresh(analysis: str, /, **arguments: Any) -> Any:
    """The result of an analysis that reads files which may change, such as the metrics of a run; never kept."""
    from dcinterp.results.registry import ANALYSES

    return ANALYSES[analysis].function(**arguments)


def compute(
    key: str,
    analysis: str,
    model: str | None,
    arguments: dict[str, Any],
    hold: AbstractContextManager[Any] | None = None,
    **extra: Any,
) -> Any:
    """Run the analysis under its model's lock and keep the result; `hold` is another way to take that lock."""
    from dcinterp.results.registry import ANALYSES

    function = ANALYSES[analysis].function
    if model is None:
        result = function(**arguments, **extra)
    else:
        bridge = models.model(model)
        with hold if hold is not None else models.lock(model):
            result = function(bridge, **arguments, **extra)
    _cache.put(key, result)
    return result


def long(
    analysis: str,
    model: str | None,
    /,
    *,
    title: str,
    key: str,
    cost: str = "",
    at_once: bool = False,
    partial: Callable[[Any], None] | None = None,
    again: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
    stamp: object = "",
    **arguments: Any,
) -> Any | None:
    """The result of a slow analysis: a button, then progress with a way to cancel, then the result.

    Args:
        analysis, model, arguments: as in `run`.
        title: of the work, for the button and the list of running work.
        key: of the widgets.
        cost: how long it takes, shown on the button.
        at_once: whether to start without a button where the model is small: of a short prompt it then takes a second.
        partial: draws a partial result.
        again: arguments that change no number but save work, such as parts of an earlier result.
        given: more arguments, whose names may be those of parameters here.
        stamp: what changes when files do that the analysis reads besides the model.

    Returns:
        The result, or None as long as there is none.
    """
    arguments |= given or {}
    made_by = key_of(analysis, model, arguments) + str(stamp)
    if (kept := _cache.get(made_by)) is not None:
        return kept
    if at_once and model is not None and small(model):
        with st.spinner(f"{title} ..."):
            return compute(made_by, analysis, model, arguments, **(again or {}))
    job = jobs.find(made_by)
    if job is not None and job.state == "done":  # its result has left the cache
        return job.result

    def start() -> None:
        def work(progress: Any) -> Any:
            # Another session may have asked the same while this work was waiting.
            if (made := _cache.get(made_by)) is not None:
                return made
            if model is None:
                return compute(made_by, analysis, model, arguments, progress=progress, **(again or {}))
            turn = Turn(models.lock(model), progress.check)
            return compute(made_by, analysis, model, arguments, turn, progress=turn.polite(progress), **(again or {}))

        jobs.start(title, made_by, work)

    if job is None or job.state in ("cancelled", "failed"):
        if job is not None:
            jobs.report(job)
        st.button(
            f"{title}{f' ({cost})' if cost else ''}",
            key=f"start-{key}",
            on_click=start,
            type="primary",
            icon=":material/play_arrow:",
        )
        if job is not None and job.partial is not None and partial is not None:
            st.caption("The partial result when it stopped:")
            partial(job.partial)
        return None
    jobs.panel(job, key, partial)
    return None


def small(model: str) -> bool:
    """Whether a model is so small that a few passes through it take no noticeable time."""
    return sum(weight.numel() for weight in models.model(model).parameters()) <= SMALL


class Turn:
    """A model's lock in long work: waiting for it ends when the work is cancelled, and others get it between two units.

    Args:
        lock: of the model.
        check: raises where waiting has become pointless.
    """

    def __init__(self, lock: threading.RLock, check: Callable[[], None]) -> None:
        self.lock, self.check, self.held = lock, check, False

    def __enter__(self) -> None:
        while not self.lock.acquire(timeout=jobs.LOOKS_EVERY):
            self.check()
        self.held = True

    def __exit__(self, *_: Any) -> None:
        if self.held:
            self.lock.release()
        self.held = False

    def polite(self, progress: Any) -> Any:
        """A progress callback that lets other sessions use the model between two units of work."""

        def step(done: int, total: int, message: str = "") -> None:
            self.__exit__()
            progress(done, total, message)  # work that was left alone may wait in here for its place
            # Giving way needs a moment: a lock that is let go and taken again at once goes to whoever held it.
            time.sleep(0.002)
            self.__enter__()

        for name in ("partial", "keep"):
            setattr(step, name, getattr(progress, name, None))
        return step
