"""Long work: a thread of its own, with progress, a way to cancel, and partial results.

A worker touches nothing of Streamlit; pages look at its `Job`. Work that nobody has looked at for two minutes (the
browser was closed) is cancelled.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

UNSEEN_SECONDS = 120.0
RUNNING_AT_ONCE = 2
REMEMBERED = 64


@dataclass
class Job:
    """One piece of work; `state` is waiting, running, done, cancelled or failed."""

    title: str
    key: str
    session: str
    work: Callable[[Any], Any]
    state: str = "waiting"
    done: int = 0
    total: int = 0
    message: str = ""
    error: str = ""
    result: Any = None
    partial: Any = None
    seen: float = field(default_factory=time.monotonic)
    began: float = field(default_factory=time.monotonic)
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def alive(self) -> bool:
        return self.state in ("waiting", "running")

    @property
    def fraction(self) -> float:
        return min(1.0, self.done / self.total) if self.total else 0.0

    def words(self) -> str:
        """Where the work stands, with an estimate of the time left."""
        if self.state == "waiting":
            return f"{self.title}: waiting for other work"
        text = f"{self.title}: {self.done} of {self.total}" if self.total else self.title
        gone = time.monotonic() - self.began
        if self.done and gone > 3:
            text += f", about {gone / self.done * (self.total - self.done):.0f} s left"
        return f"{text} ({self.message})" if self.message else text


_jobs: OrderedDict[tuple[str, str], Job] = OrderedDict()
_guard = threading.Lock()
_places = threading.Semaphore(RUNNING_AT_ONCE)


def session() -> str:
    """A name for this browser session: two sessions never share or cancel each other's work."""
    return st.session_state.setdefault("_session", uuid.uuid4().hex)


def find(key: str) -> Job | None:
    """This session's work of that key, if there is any."""
    return _jobs.get((session(), key))


def mine() -> list[Job]:
    """All work of this session that is not over."""
    me = session()
    return [job for (owner, _), job in list(_jobs.items()) if owner == me and job.alive]


def start(title: str, key: str, work: Callable[[Any], Any]) -> Job:
    """Begin `work(progress)` in a thread, unless it is under way already.

    Args:
        title: for people.
        key: what tells this work from other work of the session.
        work: called with a `Progress` that raises `Cancelled` when somebody cancels.
    """
    with _guard:
        known = _jobs.get((session(), key))
        if known is not None and known.alive:
            return known
        job = Job(title, key, session(), work)
        _jobs[job.session, key] = job
        over = [name for name, other in _jobs.items() if not other.alive]
        for name in over[: max(0, len(_jobs) - REMEMBERED)]:
            del _jobs[name]
    threading.Thread(target=_run, args=(job,), daemon=True, name=f"job {title}").start()
    return job


def _run(job: Job) -> None:
    from dcinterp.support.progress import Cancelled

    def progress(done: int, total: int, message: str = "") -> None:
        job.done, job.total, job.message = done, total, message
        if job.stop.is_set() or time.monotonic() - job.seen > UNSEEN_SECONDS:
            raise Cancelled

    def partial(result: Any) -> None:
        job.partial = result

    progress.partial = partial  # type: ignore[attr-defined]
    with _places:
        job.state, job.began = "running", time.monotonic()
        try:
            progress(0, 0)
            job.result = job.work(progress)
            job.state = "done"
        except Cancelled:
            job.state = "cancelled"
        except (ValueError, OSError) as problem:
            job.error, job.state = str(problem).splitlines()[0], "failed"
        except Exception as problem:  # a thread that dies silently would leave the page waiting for ever
            job.error, job.state = f"{type(problem).__name__}: {problem}", "failed"


def report(job: Job) -> None:
    """One line about work that ended without a result."""
    if job.state == "cancelled":
        st.info(f"{job.title}: cancelled after {job.done} of {job.total}.", icon=":material/stop_circle:")
    elif job.state == "failed":
        st.error(f"{job.title}: {job.error}", icon=":material/error:")


def panel(job: Job, key: str, partial: Callable[[Any], None] | None = None) -> None:
    """Progress, a button to cancel, and partial results; the page runs again when the work has ended."""

    @st.fragment(run_every=0.5 if job.alive else None)
    def follow() -> None:
        job.seen = time.monotonic()
        if not job.alive:
            st.rerun()
        st.progress(job.fraction, text=job.words())
        st.button("Cancel", key=f"cancel-{key}", on_click=job.stop.set, icon=":material/stop:")
        if job.partial is not None and partial is not None:
            partial(job.partial)

    follow()


def sidebar() -> None:
    """This session's running work, on every page: its progress, and a button to cancel it."""
    running = mine()
    if not running:
        return

    @st.fragment(run_every=1.0)
    def follow() -> None:
        for number, job in enumerate(running):
            job.seen = time.monotonic()
            if job.alive:
                st.progress(job.fraction, text=job.words())
                st.button("Cancel", key=f"sidebar-cancel-{number}", on_click=job.stop.set)
        if not all(job.alive for job in running):
            st.rerun()

    st.markdown("**Running**")
    follow()
