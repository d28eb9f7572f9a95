"""Long work: a thread of its own, with progress, a way to cancel, and partial results.

A worker touches nothing of Streamlit; pages look at its `Job`. Jobs belong to the server: a visitor who loads the page
again, in the same browser, finds his own with their progress. Few run at a time, the others wait in a queue. Work whose
visitors are all gone gives its place to whoever waits, and is cancelled after `UNSEEN_SECONDS`. What units of work of a
cancelled analysis have found is kept for a while, so that the same work, started again, goes on from there.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import streamlit as st
from streamlit.runtime import Runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

from dcinterp.support.progress import Cancelled, only_interrupts
from workbench.markdown import sentence

UNSEEN_SECONDS = 600.0
RELOAD_SECONDS = 5.0
"""How long a page may take to come back before its work counts as left alone."""
RUNNING_AT_ONCE = 2
REMEMBERED = 64
LOOKS_EVERY = 0.2
"""Seconds between two looks of waiting work at its place, and at whether it was cancelled."""
CANCEL_WAITS = 1.0
"""Seconds in which a click on Cancel waits for the end: most work ends within one pass, and the page then says so at
once instead of at its next look."""


@dataclass
class Job:
    """One piece of work; `state` is waiting, running, done, cancelled or failed."""

    title: str
    key: str
    visitors: set[str]
    """Who started it; the same work of several visitors is done once."""
    work: Callable[[Any], Any]
    state: str = "waiting"
    done: int = 0
    total: int = 0
    message: str = ""
    error: str = ""
    result: Any = None
    partial: Any = None
    began: float = field(default_factory=time.monotonic)
    stop: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    gave_up: set[str] = field(default_factory=set)
    """The visitors who cancelled; it stops when all of them have."""
    units: dict[str, Any] = field(default_factory=dict)
    """What the units of work have found, by name, in this attempt and in those before it."""
    found_before: int = 0
    """How much of `done` earlier attempts had found."""
    has_place: bool = False
    alone_since: float | None = None

    @property
    def alive(self) -> bool:
        return self.state in ("waiting", "running")

    @property
    def fraction(self) -> float:
        return min(1.0, self.done / self.total) if self.total else 0.0

    @property
    def alone(self) -> float:
        """For how many seconds nobody who wants it has had a page open."""
        if any(is_here(visitor) for visitor in self.visitors - self.gave_up):
            self.alone_since = None
            return 0.0
        if self.alone_since is None:
            self.alone_since = time.monotonic()
        return time.monotonic() - self.alone_since

    def words(self) -> str:
        """Where the work stands, with an estimate of the time left."""
        if self.stop.is_set():
            return f"{self.title}: stopping"
        if self.state == "waiting":
            return f"{self.title}: waiting for other work"
        text = f"{self.title}: {self.done} of {self.total}" if self.total else self.title
        gone, made = time.monotonic() - self.began, self.done - self.found_before
        if made > 0 and gone > 3:
            text += f", about {gone / made * (self.total - self.done):.0f} s left"
        return f"{text} ({self.message})" if self.message else text


_jobs: OrderedDict[str, Job] = OrderedDict()
_guard = threading.Lock()
_places = threading.Condition()
_queue: list[Job] = []
_here: dict[str, set[str]] = {}
"""The Streamlit sessions, which are the open pages, of every visitor."""
_this_thread = threading.local()

# The cookie lets a page that is loaded again say whose it is, from its first run on. It holds a random word and is gone
# when the browser closes.
_component = st.components.v2.component(
    "dcinterp_visitor",
    html="<div></div>",
    js="""
export default function ({ data }) {
  const known = document.cookie.split("; ").some((each) => each.startsWith(data.name + "="))
  if (!known) document.cookie = `${data.name}=${data.visitor}; path=/; SameSite=Strict`
}
""",
)


def visitor() -> str:
    """A name for who looks: two visitors never cancel each other's work, and one who loads the page again is known."""
    if "_visitor" not in st.session_state:
        told = str(st.context.cookies.get(_cookie(), ""))
        st.session_state["_visitor"] = told if re.fullmatch("[0-9a-f]{32}", told) else uuid.uuid4().hex
    return str(st.session_state["_visitor"])


def came_back() -> bool:
    """Whether this visitor was here before, since the browser was opened."""
    return str(st.context.cookies.get(_cookie(), "")) == visitor()


def _cookie() -> str:
    # Cookies of one machine are shared by all its ports, and so by two apps on it.
    return f"dcinterp_{urlsplit(str(st.context.url or '')).port or ''}"


def visit() -> None:
    """At the beginning of every run: this visitor has a page open."""
    context = get_script_run_ctx()
    with _guard:
        for who, pages in list(_here.items()):
            pages &= {page for page in pages if _is_open(page)}
            if not pages:
                del _here[who]
        if context is not None:
            _here.setdefault(visitor(), set()).add(context.session_id)
    _component(key="visitor", data={"name": _cookie(), "visitor": visitor()})


def is_here(who: str) -> bool:
    """Whether a visitor has a page open."""
    return any(_is_open(page) for page in list(_here.get(who, ())))


def _is_open(page: str) -> bool:
    # Without a server, in a test, there is nobody who could have gone.
    return not Runtime.exists() or Runtime.instance().is_active_session(page)


def find(key: str) -> Job | None:
    """The work of that key, if this visitor started it and has not left it to others."""
    job = _jobs.get(key)
    return job if job is not None and _is_mine(job) else None


def mine() -> list[Job]:
    """All work of this visitor that is not over."""
    return [job for job in list(_jobs.values()) if job.alive and _is_mine(job)]


def _is_mine(job: Job) -> bool:
    me = visitor()
    return me in job.visitors and (me not in job.gave_up or job.stop.is_set() or not job.alive)


def start(title: str, key: str, work: Callable[[Any], Any]) -> Job:
    """Begin `work(progress)` in a thread, unless it is under way already.

    Args:
        title: for people.
        key: what tells this work from other work; the same key means the same result.
        work: called with a `Progress` that raises `Cancelled` when all who wanted it have cancelled.
    """
    me = visitor()
    with _guard:
        known = _jobs.get(key)
        if known is not None and known.alive and not known.stop.is_set():
            known.visitors.add(me)
            known.gave_up.discard(me)
            return known
        job = Job(title, key, {me}, work, units=known.units if known is not None else {})
        _jobs[key] = job
        _jobs.move_to_end(key)
        over = [name for name, other in _jobs.items() if not other.alive]
        for name in over[: max(0, len(_jobs) - REMEMBERED)]:
            del _jobs[name]
    threading.Thread(target=_run, args=(job,), daemon=True, name=f"job {title}").start()
    return job


def cancel(job: Job) -> None:
    """This visitor does not want the work any more; it stops unless somebody else does."""
    job.gave_up.add(visitor())
    if job.visitors <= job.gave_up:
        job.stop.set()
        with _places:
            _places.notify_all()  # it may be waiting
        job.ended.wait(CANCEL_WAITS)


@only_interrupts
def stop_if_cancelled(*_: Any) -> None:
    """A hook of torch before every module: inside a unit of work that takes long, a cancelled job ends here.

    Nothing is killed: the exception leaves the forward pass as any error in it would, so that all hooks are removed.
    """
    job = getattr(_this_thread, "job", None)
    if job is not None and job.stop.is_set():
        raise Cancelled


class JobProgress:
    """The progress callback of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, done: int, total: int, message: str = "") -> None:
        self.job.done, self.job.total, self.job.message = done, total, message
        self.check()
        if self.job.alone > RELOAD_SECONDS and _others_wait(self.job):
            _leave(self.job)
            _wait_for_place(self.job)

    def check(self) -> None:
        """Raise `Cancelled` where nobody wants the work any more."""
        if self.job.stop.is_set() or self.job.alone > UNSEEN_SECONDS:
            raise Cancelled

    def partial(self, result: Any) -> None:
        """Keep a result of the work that is done so far."""
        self.job.partial = result

    def keep(self, unit: str, make: Callable[[], Any]) -> Any:
        """What a unit of work finds, or has found in an attempt that was cancelled."""
        job = self.job
        if unit in job.units:
            job.found_before = job.done + 1
        else:
            job.units[unit] = make()
        return job.units[unit]


def _run(job: Job) -> None:
    progress = JobProgress(job)
    _this_thread.job = job
    try:
        _wait_for_place(job)
        progress.check()
        job.result = job.work(progress)
        job.units.clear()
        job.state = "done"
    except Cancelled:
        job.state = "cancelled"
    except (ValueError, OSError) as problem:
        job.error, job.state = (str(problem).splitlines() or [type(problem).__name__])[0], "failed"
    except Exception as problem:  # a thread that dies silently would leave the page waiting for ever
        job.error, job.state = f"{type(problem).__name__}: {problem}", "failed"
    finally:
        _leave(job)
        job.ended.set()


def _wait_for_place(job: Job) -> None:
    """Wait in the queue: those whose visitors are there come first, each in the order in which they came."""
    job.state = "waiting"
    with _places:
        _queue.append(job)
        while not (_running() < RUNNING_AT_ONCE and _next() is job):
            _places.wait(LOOKS_EVERY)
            if job.stop.is_set() or job.alone > UNSEEN_SECONDS:
                raise Cancelled
        job.has_place, job.state, job.began = True, "running", time.monotonic()


def _leave(job: Job) -> None:
    with _places:
        if job in _queue:
            _queue.remove(job)
        job.has_place = False
        _places.notify_all()


def _running() -> int:
    return sum(job.has_place for job in _queue)


def _next() -> Job:
    return min((job for job in _queue if not job.has_place), key=lambda job: job.alone > RELOAD_SECONDS)


def _others_wait(job: Job) -> bool:
    with _places:
        return any(not other.has_place and other.alone <= RELOAD_SECONDS for other in _queue if other is not job)


def report(job: Job) -> None:
    """One line about work that ended without a result."""
    if job.state == "cancelled":
        again = " Started again, it goes on from there." if job.units else ""
        st.info(f"{job.title}: cancelled after {job.done} of {job.total}.{again}", icon=":material/stop_circle:")
    elif job.state == "failed":
        st.error(f"{job.title}: {sentence(job.error)}", icon=":material/error:")


def panel(job: Job, key: str, partial: Callable[[Any], None] | None = None) -> None:
    """Progress, a button to cancel, and partial results; the page runs again when the work has ended."""

    @st.fragment(run_every=0.5 if job.alive else None)
    def follow() -> None:
        if not job.alive or not _is_mine(job):
            st.rerun()
        st.progress(job.fraction, text=job.words())
        st.button("Cancel", key=f"cancel-{key}", on_click=cancel, args=(job,), icon=":material/stop:")
        if job.partial is not None and partial is not None:
            partial(job.partial)

    follow()


def place() -> Any:
    """Where `sidebar` draws at the end of a run; when nothing is under way it is empty from the beginning on."""
    return st.container() if mine() else st.empty()


def sidebar() -> None:
    """This visitor's running work, on every page: its progress, and a button to cancel it."""
    running = mine()
    if not running:
        return

    @st.fragment(run_every=1.0)
    def follow() -> None:
        under_way = [(number, job) for number, job in enumerate(running) if job.alive and _is_mine(job)]
        for number, job in under_way:
            st.progress(job.fraction, text=job.words())
            st.button("Cancel", key=f"sidebar-cancel-{number}", on_click=cancel, args=(job,))
        if len(under_way) < len(running):
            st.rerun()

    st.markdown("**Running**")
    follow()
