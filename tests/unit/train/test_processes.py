"""The same global batch in one process, in two accumulated parts or in two processes is the same training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("processes")
    script = Path(__file__).with_name("process_run.py")
    ran = subprocess.run([sys.executable, str(script), str(root)], capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return root


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["two", "halves"])
def test_same_losses_tokens_and_weights_to_float_noise(runs, name):
    one, other = ([r for r in records(runs / n) if "loss" in r] for n in ("one", name))
    assert len(one) == len(other) == 12, "the main process alone writes"
    for mine, theirs in zip(one, other, strict=True):
        assert mine["tokens"] == theirs["tokens"]
        assert theirs["loss"] == pytest.approx(mine["loss"], abs=2e-5)
        assert theirs["learning_rate"] == mine["learning_rate"]
        assert theirs["gradient_norm"] == pytest.approx(mine["gradient_norm"], rel=1e-3)
    assert one[0]["loss"] - one[5]["loss"] > 0.1, "something was learnt"
    mine, theirs = (load_file(runs / n / "model" / "model.safetensors") for n in ("one", name))
    for key, weight in mine.items():
        torch.testing.assert_close(theirs[key], weight, atol=2e-4, rtol=0)


def test_every_process_was_counted(runs):
    started = json.loads((runs / "two" / "history.jsonl").read_text().splitlines()[0])
    assert started["processes"] == 2
