"""Ending a run from outside so that nothing is lost: after the step it is in, with a checkpoint.

What ends it: Ctrl-C, `kill`, a terminal that is closed, or the end of the program that started it (the app, a sweep).
The last is seen by the parent of this process having changed, which works on Linux and macOS, and also when that
program was killed without a chance to say anything.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dcinterp.support.progress import Cancelled, Progress

PARENT = "DCINTERP_PARENT"
"""The environment variable with the process id of the program without which the run is to stop."""

SIGNALS = {"SIGINT": "Ctrl-C", "SIGTERM": "a request to end", "SIGHUP": "the terminal was closed"}


def child_environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For a run in a process of its own: the same dcinterp there as here, and no run that outlives this process.

    Args:
        variables: what the child has besides.
    """
    here = str(Path(__file__).parents[3])
    paths = os.pathsep.join(filter(None, [here, variables.get("PYTHONPATH", "")]))
    # Safe: with -m Python would take the modules of the folder that it is started in, which may be anybody's.
    return {**variables, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1", PARENT: str(os.getpid())}


@contextmanager
def stop_on_signals(progress: Progress) -> Iterator[Progress]:
    """A progress callback that raises `Cancelled`, with the reason, once somebody wants the run to end.

    Before the first step, and at a second Ctrl-C, the run is interrupted at once instead. Signals that are ignored
    (`nohup`) stay so.
    """
    reasons: list[str] = []
    begun = False
    # On Windows the parent is a launcher of the virtual environment, and not who started the run.
    parent = os.environ.get(PARENT, "") if os.name == "posix" else ""

    def ask(number: int, frame: Any) -> None:
        if number == getattr(signal, "SIGHUP", None):
            _detach_terminal()
        if not begun or (number == signal.SIGINT and reasons):
            raise KeyboardInterrupt
        reasons.append(SIGNALS[signal.Signals(number).name])

    def step(done: int, total: int, message: str = "") -> None:
        nonlocal begun
        begun = True
        progress(done, total, message)
        if parent.isdigit() and os.getppid() != int(parent):
            reasons.append("the program that started it has ended")
        if reasons:
            raise Cancelled(reasons[0])

    with _handling(SIGNALS, ask):
        yield step


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """`kill` and a closed terminal interrupt the block as Ctrl-C does, so that what it started is stopped.

    In a thread that is not the main one, nothing is caught; signals that are ignored (`nohup`) stay so.
    """

    def interrupt(number: int, frame: Any) -> None:
        if number == getattr(signal, "SIGHUP", None):
            _detach_terminal()
        raise KeyboardInterrupt

    with _handling(("SIGTERM", "SIGHUP"), interrupt):
        yield


@contextmanager
def _handling(names: Iterable[str], handle: Callable[[int, Any], None]) -> Iterator[None]:
    """Let a function handle those of these signals that are there and not ignored; in the main thread alone."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in names:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _detach_terminal() -> None:
    """Writing to a terminal that is gone fails, and would end the run before its checkpoint is written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream.isatty():
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except (OSError, ValueError):
            continue
