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
from warm_python import warm

from dcinterp.train.control.signals import PARENT
from dcinterp.train.loop.trainer import missing_processes

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("processes")
    script = Path(__file__).with_name("process_run.py")
    with warm():
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


CONFIG = """
model: {preset: tiny-transformer++, changes: {num_hidden_layers: 1, hidden_size: 16, num_attention_heads: 2}}
data: {phases: [{source: pairs, steps: 2, batch_size: 4}]}
evaluation: {every: 2, answers_per_task: 1, examples: [1], watch: false}
"""


@pytest.mark.parametrize(
    ("launcher", "started"),
    [
        (["torch.distributed.run", "--nproc_per_node", "2"], 2),
        (["accelerate.commands.launch", "--cpu", "--num_processes", "2"], 1),
    ],
    ids=["torchrun", "accelerate"],
)
@pytest.mark.usefixtures("warm_python")
def test_a_launcher_starts_as_many_as_it_says_or_a_line_names_what_to_type(tmp_path, launcher, started):
    (tmp_path / "run.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", *launcher, "-m", "dcinterp", "train", str(tmp_path / "run.yaml")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command += ["--output", str(tmp_path / "run")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    (start,) = (json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines())
    assert start["processes"] == started
    warnings = [line for line in ran.stderr.splitlines() if "torchrun --nproc_per_node N" in line]
    assert len(warnings) == (0 if started == 2 else 1), ran.stderr
    assert all("processes were asked for, and 1 trains here" in line for line in warnings)


def test_one_process_that_nobody_launched_warns_of_nothing(monkeypatch):
    for name in ("WORLD_SIZE", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert missing_processes() == ""
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert missing_processes().startswith("2 processes were asked for, and 1 trains here")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert missing_processes() == "", "srun starts torchrun, which starts what it is asked for"
    monkeypatch.delenv("WORLD_SIZE")
    assert missing_processes().startswith("8 tasks were asked for, and 1 trains here")
    monkeypatch.setenv(PARENT, "1")
    assert missing_processes() == "", "a worker of a cluster starts runs that are one process each"
