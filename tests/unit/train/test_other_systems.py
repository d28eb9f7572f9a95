"""What Macs and Windows have otherwise, as far as it can be asked on another system."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from dcinterp.cli.load import resident_bytes
from dcinterp.support.progress import silent
from dcinterp.support.wide import wide
from dcinterp.train.control import engines, signals
from dcinterp.train.loop import checkpoints, stacked
from dcinterp.train.loop.trainer import on_cpu


@pytest.mark.parametrize(("kind", "cpu"), [("mps", True), ("cuda", False), (None, True)])
def test_runs_on_macs_use_the_cpu(monkeypatch, kind, cpu):
    found = None if kind is None else torch.device(kind)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: found is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: found)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    assert on_cpu() == cpu
    if cpu:
        assert stacked.find_device("").type == "cpu"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    assert on_cpu()


def test_numbers_are_wide_where_they_can_be():
    class Metal:
        """A tensor on a device without float64."""

        device = torch.device("mps")

        def double(self):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

        def cpu(self):
            return torch.ones(2)

    assert wide(Metal()).dtype == wide(torch.ones(2)).dtype == torch.float64


def test_windows_syncs_what_is_open_to_be_written(monkeypatch, tmp_path):
    opened = []
    real = os.open
    monkeypatch.setattr(checkpoints.os, "open", lambda path, flags: opened.append(flags) or real(path, flags))
    file = tmp_path / "weights"
    file.write_bytes(b"1")
    checkpoints._sync(file)
    checkpoints._sync(tmp_path)
    monkeypatch.setattr(checkpoints.os, "name", "nt")
    checkpoints._sync(file)
    checkpoints._sync(tmp_path)  # opens nothing
    assert opened == [os.O_RDONLY, os.O_RDONLY, os.O_RDWR]


def test_no_parent_is_watched_on_windows(monkeypatch):
    monkeypatch.setenv(signals.PARENT, str(os.getpid()))  # not the parent of this process
    monkeypatch.setattr(signals.os, "name", "nt")
    with signals.stop_on_signals(silent) as step:
        step(1, 2)


def test_a_run_that_was_asked_to_stop_did_not_fail(tmp_path, monkeypatch):
    """Where `terminate` ends it at once, its code is that of a failure."""
    (tmp_path / "stop").touch()
    asked = iter([False, True, True])
    monkeypatch.setattr(engines, "_is_there", lambda _: next(asked))
    ended = engines._run([sys.executable, "-c", "import sys; sys.exit(1)"], str(tmp_path / "log"), "stop")
    assert ended == engines.STOPPED


@pytest.mark.parametrize(
    ("says", "ended"),
    [
        ("Stopped at a checkpoint", engines.STOPPED),
        ("dcinterp: no room", "no room"),
        ("dcinterp: note: slow", engines.STOPPED),
    ],
)
def test_a_run_that_ends_with_a_code_while_it_is_to_stop_is_stopped_unless_it_says_why(
    tmp_path, monkeypatch, says, ended
):
    """As on Windows, where `terminate` gives the code 1; a child that fails then says so in a sentence of its own."""

    class Child:
        def __init__(self, *_, stdout, **__):
            stdout.write(says.encode())
            self.codes = iter([None, 1])

        def poll(self):
            return next(self.codes)

        def terminate(self):
            pass

    asked = iter([False, True, True])
    monkeypatch.setattr(engines, "_is_there", lambda _: next(asked))
    monkeypatch.setattr(engines.subprocess, "Popen", Child)
    assert engines._run(["run"], str(tmp_path / "log"), "stop") == ended


def test_memory_is_not_told_where_the_system_does_not(monkeypatch):
    assert resident_bytes() > 0
    monkeypatch.setitem(sys.modules, "resource", None)
    assert resident_bytes() is None
