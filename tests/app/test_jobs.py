"""Long work belongs to the server: who started it finds it again, it can be cancelled at any time, and it resumes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import dcinterp

APP = Path(__file__).parents[2] / "app"
SECONDS = 2.0
"""In which work ends after it was cancelled."""


@pytest.fixture
def jobs(monkeypatch):
    """The module with its queue empty, one place, and a visitor whom a test may change."""
    monkeypatch.syspath_prepend(str(APP))
    from workbench import jobs

    monkeypatch.setattr(jobs, "RUNNING_AT_ONCE", 1)
    monkeypatch.setattr(jobs, "RELOAD_SECONDS", 0.05)
    monkeypatch.setattr(jobs, "visitor", lambda: "Ann")
    monkeypatch.setattr(jobs, "is_here", lambda who: True)
    jobs._jobs.clear()
    assert not jobs._queue
    yield jobs
    for job in jobs._jobs.values():
        job.stop.set()
    comes_true(lambda: not jobs._queue)


def comes_true(what, seconds: float = 10.0) -> float:
    """Wait until something is true; the seconds that it took."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds
        time.sleep(0.005)
    return time.monotonic() - began


def counting(progress):
    for step in range(2000):
        progress(step, 2000)
        time.sleep(0.005)
    return "counted"


def test_waiting_work_can_be_cancelled_and_running_work_goes_on(jobs):
    first, second = jobs.start("first", "1", counting), jobs.start("second", "2", counting)
    comes_true(lambda: first.done > 3)
    assert second.state == "waiting"
    jobs.cancel(second)
    assert comes_true(lambda: not second.alive) < SECONDS
    assert (first.state, second.state) == ("running", "cancelled")
    assert jobs.mine() == [first]
    jobs.cancel(first)
    assert comes_true(lambda: not first.alive) < SECONDS


def test_a_click_on_cancel_takes_the_work_from_the_sidebar_at_once(jobs, app):
    """In the same run, not at the page's next look: with a second of work in each, that was what took long."""
    first, second = jobs.start("first", "1", counting), jobs.start("second", "2", counting)
    comes_true(lambda: first.done > 3)
    page = app.switch_page("app_pages/glossary.py").run()
    assert said(page) == ["first", "second"]
    page.button(key="sidebar-cancel-1").click().run()
    assert (first.state, second.state, said(page)) == ("running", "cancelled", ["first"])
    page.button(key="sidebar-cancel-0").click().run()
    assert (first.state, said(page)) == ("cancelled", [])


def test_work_that_is_left_to_others_goes_from_the_sidebar(jobs, app, monkeypatch):
    job = jobs.start("count", "1", counting)
    monkeypatch.setattr(jobs, "visitor", lambda: "Bob")
    jobs.start("count", "1", counting)
    page = app.switch_page("app_pages/glossary.py").run()
    monkeypatch.setattr(jobs, "CANCEL_WAITS", 0)
    page.button(key="sidebar-cancel-0").click().run()
    assert (job.alive, said(page)) == (True, [])


def said(page) -> list[str]:
    """The titles of the work that the sidebar lists."""
    return [bar.proto.text.partition(":")[0] for bar in page.sidebar.get("progress")]


def test_the_same_work_of_two_visitors_is_done_once_and_belongs_to_both(jobs, monkeypatch):
    job = jobs.start("count", "1", counting)
    monkeypatch.setattr(jobs, "visitor", lambda: "Bob")
    assert jobs.find("1") is None
    assert jobs.start("count", "1", counting) is job
    jobs.cancel(job)
    assert jobs.mine() == []
    time.sleep(0.3)
    assert job.alive, "Ann still wants it"
    monkeypatch.setattr(jobs, "visitor", lambda: "Ann")
    assert jobs.find("1") is job
    jobs.cancel(job)
    assert comes_true(lambda: job.state == "cancelled") < SECONDS


def test_work_that_was_left_alone_makes_room_and_goes_on_afterwards(jobs, monkeypatch):
    here = {"Ann", "Bob"}
    monkeypatch.setattr(jobs, "is_here", here.__contains__)
    alone = jobs.start("left alone", "1", counting)
    comes_true(lambda: alone.done > 3)
    here.discard("Ann")
    monkeypatch.setattr(jobs, "visitor", lambda: "Bob")
    wanted = jobs.start("wanted", "2", lambda progress: [progress(n, 20) or time.sleep(0.01) for n in range(20)])
    assert comes_true(lambda: wanted.state == "running") < SECONDS
    assert alone.state == "waiting"
    comes_true(lambda: wanted.state == "done")
    comes_true(lambda: alone.state == "running")


def test_work_that_nobody_comes_back_to_is_cancelled(jobs, monkeypatch):
    monkeypatch.setattr(jobs, "is_here", lambda who: False)
    monkeypatch.setattr(jobs, "UNSEEN_SECONDS", 0.2)
    job = jobs.start("count", "1", counting)
    comes_true(lambda: not job.alive)
    assert job.state == "cancelled"
    assert 0 < job.done < 2000


def test_a_failure_is_reported_and_not_silent(jobs):
    def work(progress):
        raise dcinterp.UserError("There is nothing to do.")

    job = jobs.start("nothing", "1", work)
    comes_true(lambda: not job.alive)
    assert (job.state, job.error) == ("failed", "There is nothing to do.")


def test_an_analysis_over_examples_goes_on_where_it_was_cancelled(jobs, shipped, monkeypatch):
    from dcinterp.analysis.composition import mean_composition_map as module

    arguments = {"examples": "task2 n=6", "layer": 1, "stage": "post"}
    made: list[int] = []
    original, gate = module._sums, threading.Event()

    def slow(*given):
        made.append(len(made))
        if len(made) == 4:
            gate.set()
            time.sleep(0.3)
        return original(*given)

    monkeypatch.setattr(module, "_sums", slow)

    def work(progress):
        return dcinterp.mean_composition_map(shipped, **arguments, progress=progress)

    first = jobs.start("average", "1", work)
    gate.wait(30)
    jobs.cancel(first)
    comes_true(lambda: not first.alive)
    assert (first.state, len(made)) == ("cancelled", 4)
    again = jobs.start("average", "1", work)
    comes_true(lambda: not again.alive, 60)
    assert (again.state, again.error) == ("done", "")
    assert len(made) <= 7, "what had been found was not computed again; the unit that was cut off may be"
    whole = dcinterp.mean_composition_map(shipped, **arguments)
    for name, tensor in whole.tensors().items():
        assert tensor.equal(again.result.tensors()[name]), name


@pytest.mark.parametrize("what", ["hooks", "tokens"])
def test_inside_a_long_unit_of_work_a_cancelled_job_ends_and_leaves_no_hooks(jobs, shipped, what):
    """Under hooks of its own, and beside the fused kernels, which stand in for modules of every layer."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    from dcinterp.model.kernels.fused.plain import no_global_hooks

    hooks = [("blocks.1.hook_resid_pre", lambda stream, hook: 2 * stream)]

    def work(progress):
        while True:  # without a single call of the progress
            if what == "hooks":
                shipped.run_with_hooks("Ruth has a violin .", fwd_hooks=hooks)
            else:
                shipped.generate("Ruth has a violin .", max_new_tokens=50, verbose=False)

    before = shipped("Ruth has a violin .")
    handle = register_module_forward_pre_hook(jobs.stop_if_cancelled)
    try:
        assert no_global_hooks(), "but this one"
        job = jobs.start("endless", "1", work)
        comes_true(lambda: job.state == "running")
        time.sleep(0.2)
        jobs.cancel(job)
        assert comes_true(lambda: not job.alive) < SECONDS
    finally:
        handle.remove()
    assert job.state == "cancelled"
    assert shipped("Ruth has a violin .").equal(before)


def test_the_app_watches_for_cancelled_work_before_every_module():
    assert "register_module_forward_pre_hook(stop_if_cancelled)" in (APP / "preload.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("began", [False, True])
def test_waiting_for_a_model_ends_when_the_work_is_cancelled(jobs, began):
    """Before its first unit of work, and after a unit, when it had given way to others."""
    from workbench.analyses import Turn

    lock, others = threading.RLock(), threading.Event()

    def work(progress):
        turn = Turn(lock, progress.check)
        with turn:
            step = turn.polite(progress)
            step(0, 2)
            others.wait(10)
            while True:
                step(1, 2)

    if not began:
        lock.acquire()
    job = jobs.start("wait", "1", work)
    comes_true(lambda: job.state == "running" and (not began or job.total == 2))
    others.set()
    if began:
        assert lock.acquire(timeout=10), "it gives way between two units"
    jobs.cancel(job)
    assert comes_true(lambda: not job.alive) < SECONDS
    assert job.state == "cancelled"
    lock.release()
    assert lock.acquire(timeout=1)


@pytest.mark.browser
def test_work_survives_a_reload_with_its_progress_and_its_cancel(page, server):
    expect = pytest.importorskip("playwright.sync_api").expect
    page.goto(f"{server}/tasks?rows=50&seed=99")
    page.get_by_role("button", name="Evaluate dcformer++").click(timeout=120_000)
    sidebar = page.locator("[data-testid=stSidebar]")
    expect(sidebar.get_by_text("Evaluate dcformer++: ")).to_be_visible(timeout=60_000)
    page.goto(f"{server}/glossary")
    expect(sidebar.get_by_text("Evaluate dcformer++: ")).to_be_visible(timeout=60_000)
    page.reload()
    expect(sidebar.get_by_text("Evaluate dcformer++: ")).to_be_visible(timeout=60_000)
    sidebar.get_by_role("button", name="Cancel").click()
    # 2 seconds on a machine that does nothing else; here everything runs beside everything.
    expect(sidebar.get_by_text("Evaluate dcformer++: ")).to_have_count(0, timeout=5 * SECONDS * 1000)


def test_a_result_that_left_the_cache_is_still_there(jobs):
    """Its job has it; a panel of work that has ended would run the page again for ever."""
    from workbench import analyses

    job = jobs.start("count", analyses.key_of("training_edges", None, {"run": "x"}) + "7", lambda progress: "counted")
    comes_true(lambda: job.state == "done")
    long = {"title": "count", "key": "count", "run": "x"}
    assert analyses.long("training_edges", None, stamp=7, **long) == "counted"


def test_work_that_fails_without_a_word_ends(jobs):
    def fails(progress):
        raise ValueError

    job = jobs.start("fails", "1", fails)
    comes_true(lambda: not job.alive)
    assert (job.state, job.error) == ("failed", "ValueError")
