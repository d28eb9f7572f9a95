"""Killed with SIGKILL at any moment, also while a checkpoint is written, and resumed: the same to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from warm_python import warm

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict:
    script = Path(__file__).with_name("kill_run.py")
    command = [sys.executable, str(script), str(tmp_path_factory.mktemp("kills"))]
    with warm():
        ran = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=Path(__file__).parents[3])
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_random_moments(report):
    for seed in (1, 2):
        assert report[f"random {seed}"]["outcome"] == report["whole"], seed
    assert sum(report[f"random {seed}"]["kills"] for seed in (1, 2)) >= 2


@pytest.mark.parametrize(
    "moment",
    [
        "optimizer half written 1",
        "optimizer half written 8",
        "seal 3",
        "publish 4",
        "prune 1",
        "prune 9",
        "prune 12",
    ],
)
def test_while_a_checkpoint_is_written(report, moment):
    assert report[moment]["killed"]
    assert report[moment]["outcome"] == report["whole"]
