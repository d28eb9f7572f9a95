"""One progress callback for the console, notebooks and the app."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")
Hook = TypeVar("Hook", bound=Callable[..., None])


class Progress(Protocol):
    """Called after every unit of work; raising `Cancelled` (or anything else) stops the work."""

    def __call__(self, done: int, total: int, message: str = "") -> None: ...


class Cancelled(Exception):
    """Raised by a progress callback to stop the work."""


def only_interrupts(hook: Hook) -> Hook:
    """Mark a hook of torch for all modules that keeps and changes nothing, at most raises `Cancelled`.

    The fused kernels, which stand in for modules, run beside such a hook; with any other that listens to all modules
    they give way to the modules.
    """
    hook.only_interrupts = True  # type: ignore[attr-defined]
    return hook


def silent(done: int, total: int, message: str = "") -> None:
    """Shows nothing."""


Unit = tuple[str, Callable[[], T]]
"""The name of a unit of work, the same in every attempt and every process, and what finds it."""


def all_once(
    progress: Progress,
    units: Sequence[Unit[T]],
    *,
    before: int = 0,
    later: int = 0,
    report: bool = True,
    after: Callable[[list[T]], None] | None = None,
) -> list[T]:
    """What all units of work find, in their order, none needing another's.

    Args:
        progress: a callback; one with a method `keep_all(units, before, later)` decides where they are made, as workers
            of a cluster do; one with `keep(name, make)` finds a unit, as one does that has seen the same work before it
            was cancelled.
        units: the same in every attempt and every process.
        before, later: units of the same work that other calls make, so that its progress goes on and does not restart.
        report: call `progress` after each unit; without, the units do so themselves.
        after: given what was found so far, after each unit that was made here.
    """
    keep_all = getattr(progress, "keep_all", None)
    if keep_all is not None:
        return list(keep_all(units, before, later))
    keep = getattr(progress, "keep", None)
    found: list[T] = []
    for done, (name, make) in enumerate(units):
        found.append(make() if keep is None else keep(name, make))
        if report:
            progress(before + done + 1, before + len(units) + later, name)
        if after is not None:
            after(found)
    return found


@contextmanager
def console(description: str) -> Iterator[Progress]:
    """A progress bar while the block runs, in a terminal or a notebook; nothing in a file or a pipe.

    It stands there at once. A call with nothing done says what is being prepared, which the estimate leaves out.
    """
    from tqdm.auto import tqdm

    with tqdm(desc=description, leave=False, disable=None) as bar:

        def show(done: int, total: int, message: str = "") -> None:
            bar.set_postfix_str(message, refresh=False)
            if done == 0:
                bar.reset(total)
            else:
                bar.total = total
                bar.update(done - bar.n)

        yield show


@contextmanager
def without_bars() -> Iterator[None]:
    """No progress bars of transformers inside the block, nor its reports on tensors: ours says what happens."""
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(max(verbosity, logging.ERROR))
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
