"""Signals, and the end of the program that started a run: it stops after its step, at a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dcinterp.support.progress import Cancelled
from dcinterp.train.control.run_lock import lock_holder
from dcinterp.train.control.signals import PARENT, stop_on_signals

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def interruptible():
    """Ctrl-C and a closed terminal as at a terminal: in the background of a shell, or under `nohup`, they are ignored.

    The programs that a test starts inherit that, and would then not stop.
    """
    heard = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in heard.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def endless(folder: Path) -> Path:
    """The config of a run of tiny steps that nobody waits for."""
    tree = {
        "output": str(folder / "run"),
        "model": {
            "preset": "tiny-transformer++",
            "changes": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16},
        },
        "data": {"phases": [{"source": "pairs", "steps": 1_000_000, "batch_size": 2}]},
        "evaluation": {"every": 1_000_000, "answers_per_task": 1, "examples": [1], "watch": False},
        "save_every": 1_000_000,
    }
    path = folder / "endless.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


def training(folder: Path):
    """The process that holds the run, once it takes steps."""
    found = lock_holder(folder / "run")
    return found if found is not None and found.step else None


def last_checkpoint(folder: Path) -> dict:
    (place,) = (folder / "run" / "checkpoints").glob("checkpoint-*")
    return json.loads((place / "trainer_state.json").read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("warm_python")
def test_a_signal_leaves_a_checkpoint_and_the_line_that_goes_on(tmp_path, number, until):
    command = [sys.executable, "-m", "dcinterp", "train", str(endless(tmp_path))]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        step = until(lambda: training(tmp_path)).step
        child.send_signal(number)
        out, err = child.communicate(timeout=120)
    finally:
        child.kill()
    assert child.returncode == 130
    assert len(err.strip().splitlines()) == 1
    assert f"to go on: dcinterp train {tmp_path / 'run' / 'config.yaml'} --resume" in err
    assert "1,000,000 steps" in out.splitlines()[0], "it says what it does before it does it"
    assert last_checkpoint(tmp_path)["global_step"] >= step
    assert lock_holder(tmp_path / "run") is None


@pytest.mark.usefixtures("warm_python")
def test_a_run_stops_when_its_program_is_killed(tmp_path, until):
    """The program is killed with SIGKILL, so it cannot say anything."""
    program = f"""import os, time
os.environ[{PARENT!r}] = str(os.getpid())
if os.fork():
    time.sleep(600)
from dcinterp.cli import main
main(["train", {str(endless(tmp_path))!r}])"""
    command = [sys.executable, "-c", program]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    try:
        child = until(lambda: training(tmp_path)).process
    finally:
        parent.kill()
        parent.wait()
    assert child != parent.pid
    until(lambda: lock_holder(tmp_path / "run") is None, 60)
    assert last_checkpoint(tmp_path)["global_step"] > 0
    until(lambda: ended(child), 60)


def ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    # In a container nobody may collect orphans: they stay as zombies, which use nothing.
    status = Path(f"/proc/{process}/status")
    return status.is_file() and "State:\tZ" in status.read_text()


def test_signals_are_asked_once_the_first_step_is_done():
    handler = signal.getsignal(signal.SIGINT)
    steps = []
    with stop_on_signals(lambda done, total, message="": steps.append(done)) as progress:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        progress(1, 3)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Cancelled, match="a request to end"):
            progress(2, 3)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert steps == [1, 2]
    assert signal.getsignal(signal.SIGINT) == handler


def test_what_is_ignored_stays_ignored():
    """As `nohup` sets it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals(lambda done, total, message="": None) as progress:
            signal.raise_signal(signal.SIGHUP)
            progress(1, 2)
    finally:
        signal.signal(signal.SIGHUP, before)
