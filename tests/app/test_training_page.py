"""Training from the page: started, stopped, resumed and finished by clicks; and what a killed app leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dcinterp.train.control import run_lock
from dcinterp.train.control.run_lock import lock_holder, lock_run

playwright = pytest.importorskip("playwright.sync_api")

APP = Path(__file__).parents[2] / "app"
SETTLED = "[data-testid=stApp][data-test-script-state=notRunning]"
STARTS = 300_000


def stands(page, words: str) -> str:
    """The line over the progress bar, once it begins with these words."""
    line = page.locator("[data-testid=stMain] [data-testid=stProgress]", has_text=words)
    line.wait_for(timeout=STARTS)
    return line.inner_text()


def walk_back(page, before: str, after: str) -> None:
    """Go to the checkpoint before; a key that falls into a page just being drawn is pressed again."""
    for _ in range(5):
        page.wait_for_selector(SETTLED, timeout=STARTS)
        if page.get_by_text(before).count():
            page.get_by_role("slider").last.press("ArrowLeft")
        try:
            page.wait_for_selector(f"text={after}", timeout=30_000)
        except playwright.TimeoutError:
            continue
        return
    raise AssertionError(f"five keys, and the page does not say {after!r}")


def look_inside(page, checkpoint: str) -> None:
    """Open a checkpoint; a click that falls into a page just being drawn is made again."""
    for _ in range(5):
        page.wait_for_selector(SETTLED, timeout=STARTS)
        page.get_by_role("button", name="Look inside this checkpoint").click()
        try:
            page.wait_for_url(re.compile(checkpoint), timeout=45_000, wait_until="commit")
        except playwright.TimeoutError:
            continue
        return
    raise AssertionError(f"five clicks, and the page is still {page.url}")


@pytest.mark.browser
def test_start_stop_resume_done(page, server):
    page.goto(f"{server}/training", timeout=90_000)
    page.wait_for_selector("h1:has-text('Training')", timeout=STARTS)
    page.wait_for_selector(SETTLED, timeout=STARTS)
    start = page.get_by_role("button", name="Start", exact=True)
    try:
        # Open where there is no run yet, closed where there is one.
        start.wait_for(timeout=20_000)
    except playwright.TimeoutError:
        page.get_by_text("Start a run").click()
    for label, value in (("Layers", "1"), ("Steps", "80")):
        page.get_by_role("spinbutton", name=label).fill(value)
        page.keyboard.press("Tab")
    field = page.get_by_role("textbox", name="Folder")
    playwright.expect(field).not_to_have_value("", timeout=STARTS)  # the form is being drawn anew
    folder = field.input_value()
    start.click()
    stands(page, "Starting")
    assert "of 80" in stands(page, "Running")
    page.reload()
    assert "of 80" in stands(page, "Running"), "the run does not mind that the page is loaded again"
    page.get_by_role("button", name="Stop", exact=True).last.click()
    at = int(stands(page, "Stopped at step").split()[3])
    assert 0 < at < 80
    playwright.expect(page.get_by_role("combobox", name="Run")).to_have_value(folder, timeout=STARTS)
    page.get_by_role("button", name="Resume").click()
    stands(page, "Finished: 80 steps")
    page.wait_for_selector("text=Back through its checkpoints", timeout=STARTS)
    page.wait_for_selector(SETTLED, timeout=STARTS)
    page.wait_for_selector("text=At step 80", timeout=STARTS)
    walk_back(page, "At step 80", "At step 72")
    look_inside(page, "checkpoint-72")
    page.wait_for_selector("h3#step-1", timeout=STARTS)
    page.wait_for_selector(SETTLED, timeout=STARTS)
    assert page.locator("[data-testid=stException]").count() == 0


def test_a_run_of_another_machine_is_seen_and_left_alone(tmp_path, monkeypatch):
    """Its number may be that of another process here."""
    monkeypatch.syspath_prepend(str(APP))
    from workbench import training

    signals = []
    monkeypatch.setattr(training.os, "kill", lambda *given: signals.append(given))
    with lock_run(tmp_path) as publish:
        training.stop(tmp_path)
        assert signals.pop() == (os.getpid(), signal.SIGTERM)
        assert training.read_run(tmp_path).host == ""
        with monkeypatch.context() as there:
            there.setattr(run_lock, "gethostname", lambda: "far-away")
            publish(5, 10, "loss 1.2")
        run = training.read_run(tmp_path)
        assert (run.host, run.step, run.alive) == ("far-away", 5, True)
        training.stop(tmp_path)
        assert signals == []


@pytest.fixture
def orphan(tmp_path, until, warm_python):
    """The folder of a run whose app was killed with SIGKILL while it trained."""
    folder = tmp_path / "run"
    program = (
        f"import sys, time; sys.path.insert(0, {str(APP)!r}); from pathlib import Path; "
        "from workbench import training; "
        f"training.start(Path({str(folder)!r}), 'tiny-transformer++', 5000, {{'num_hidden_layers': 1}}, ''); "
        "time.sleep(900)"
    )
    app = subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], stderr=subprocess.DEVNULL)
    try:
        reached = until(lambda: (found := lock_holder(folder)) and found.step and found).step
    finally:
        app.kill()
        app.wait()
    return folder, reached


@pytest.mark.usefixtures("warm_python")
def test_a_killed_app_leaves_no_process_and_loses_no_step(orphan, monkeypatch, until):
    folder, reached = orphan
    monkeypatch.syspath_prepend(str(APP))
    from workbench import training

    until(lambda: lock_holder(folder) is None)
    run = training.read_run(folder)
    assert run.state == "stopped"
    assert run.saved >= reached, "it was saved where it stood, 500 steps before the first regular checkpoint"
    assert "Resume goes on from there." in run.words()
    # Taken up by the next app, and stopped again.
    training.resume(folder)
    assert training.read_run(folder).alive
    until(lambda: training.read_run(folder).step > run.saved)
    training.stop(folder)
    assert training.read_run(folder).state in ("stopping", "stopped")
    until(lambda: not training.read_run(folder).alive)
    again = training.read_run(folder)
    assert again.state == "stopped", training._last_line(folder / training.LOG)
    assert again.saved > run.saved
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in history] == [0, run.saved]


@pytest.mark.usefixtures("warm_python")
def test_a_run_from_a_terminal_is_seen_and_can_be_stopped(tmp_path, monkeypatch, until):
    monkeypatch.syspath_prepend(str(APP))
    from workbench import training

    folder = tmp_path / "run"
    small = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    tree = {
        "output": str(folder),
        "model": {"preset": "tiny-transformer++", "changes": small},
        "data": {"phases": [{"source": "pairs", "steps": 1_000_000, "batch_size": 2}]},
        "evaluation": {"every": 1_000_000, "answers_per_task": 1, "examples": [1]},
    }
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(tree), encoding="utf-8")
    command = [sys.executable, "-m", "dcinterp", "train", str(config)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    terminal = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: training.read_run(folder).state == "running")
        assert str(folder) in training.runs(tmp_path)
        training.resume(folder)
        assert str(folder) not in training._processes, "what runs is not started a second time"
        training.stop(folder)
        assert terminal.wait(timeout=120) == 130
    finally:
        terminal.kill()
    run = training.read_run(folder)
    assert run.state == "stopped"
    assert run.saved == run.step


def test_a_log_that_is_a_link_is_not_written_through(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    from workbench import training

    elsewhere, run = tmp_path / "elsewhere.txt", tmp_path / "run"
    run.mkdir()
    elsewhere.write_text("mine")
    (run / training.LOG).symlink_to(elsewhere)
    monkeypatch.setattr(training.subprocess, "Popen", lambda *_, stdout, **__: stdout.write(b"theirs"))
    monkeypatch.setattr(training, "_processes", {})
    training.resume(run)
    assert elsewhere.read_text() == "mine"
    assert (run / training.LOG).read_text() == "theirs"


def test_last_words_of_a_failure_do_not_outlive_a_newer_model(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    from workbench import training

    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text("{}")
    log = tmp_path / training.LOG
    log.write_text("dcinterp: The checkpoint of step 3 could not be written (No space left on device); make room.\n")
    for seconds, state in ((-60, "finished"), (60, "failed")):
        moved = (model / "config.json").stat().st_mtime + seconds
        os.utime(log, (moved, moved))
        assert training.read_run(tmp_path).state == state
