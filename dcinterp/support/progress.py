"""One progress callback for the console, notebooks and the app."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Called after every unit of work; raising `Cancelled` (or anything else) stops the work."""

    def __call__(self, done: int, total: int, message: str = "") -> None: ...


class Cancelled(Exception):
    """Raised by a progress callback to stop the work."""


def silent(done: int, total: int, message: str = "") -> None:
    """Shows nothing."""


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
    """No progress bars of transformers inside the block: ours says what happens."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
