"""The progress of a long run: a bar in a terminal, a line now and then in a file or a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from dcinterp.support.progress import Progress

SECONDS_BETWEEN_LINES = 10.0
# Without tqdm's own estimates: a message has them, and both do not fit into 80 columns.
BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"


@contextmanager
def show_progress(description: str, *, lines: TextIO) -> Iterator[Progress]:
    """A progress callback for the console.

    Args:
        description: the unit that is counted, such as "step".
        lines: where the lines go when standard error is not a terminal: at most one every 10 seconds, and the last.
    """
    if not sys.stderr.isatty():
        yield _lines(description, lines)
        return
    from tqdm import tqdm

    with tqdm(desc=description, leave=False, bar_format=BAR) as bar:

        def show(done: int, total: int, message: str = "") -> None:
            bar.set_postfix_str(message, refresh=False)
            if done < bar.n:  # another count begins, as after a search
                bar.reset(total)
                bar.n = done
            bar.total = total
            if done > bar.n:
                bar.update(done - bar.n)
            else:  # a message may change while the number stays the same
                bar.refresh()

        yield show


def _lines(description: str, stream: TextIO) -> Progress:
    written, last = time.monotonic(), -1

    def show(done: int, total: int, message: str = "") -> None:
        nonlocal written, last
        ended = done == total and last != done
        if ended or time.monotonic() - written >= SECONDS_BETWEEN_LINES:
            written, last = time.monotonic(), done
            print(f"{description} {done:,} of {total:,}: {message}", file=stream, flush=True)

    return show
