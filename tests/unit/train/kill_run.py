"""Run by test_kill.py: trains in child processes that are killed, and prints what became of the weights.

One process imports torch and forks for every attempt, so that a kill costs no new import.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from dcinterp.support.progress import Progress, silent
from dcinterp.train.config.recipe import DataSection, EvaluationSection, ModelSection, Phase, RecipeSection, TrainConfig
from dcinterp.train.loop.run import train

STEPS = 24


def config(output: Path) -> TrainConfig:
    return TrainConfig(
        output=str(output),
        model=ModelSection(
            changes={"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
        ),
        data=DataSection(phases=(Phase(source="pairs", steps=STEPS, batch_size=4),)),
        recipe=RecipeSection(learning_rate=3e-3, threads=1),
        evaluation=EvaluationSection(every=10, answers_per_task=1, examples=(1,)),
        save_every=3,
        log_every=5,
    )


def outcome(output: Path) -> list[str]:
    """Hashes of the trained weights, and of everything that was measured on the way."""
    parts = [(output / "model" / "model.safetensors").read_bytes(), (output / "metrics.jsonl").read_bytes()]
    watched = sorted((output / "watch").iterdir())
    parts.append(b"".join(path.name.encode() + path.read_bytes() for path in watched))
    return [hashlib.sha256(part).hexdigest() for part in parts]


def attempt(output: Path, prepare: Callable[[], None] | None = None, progress: Progress = silent) -> bool:
    """Train (go on, where there is something to go on from) in a child; True when it came to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if prepare is not None:
                prepare()
            train(config(output), resume=True, progress=progress)
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0, "a run that was not killed must end well"
    return True


def killed_after(step: int, seconds: float) -> Progress:
    """A progress callback that kills its process so long after a step, which comes however fast the machine is."""

    def progress(done: int, total: int, message: str = "") -> None:
        if done == step:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()

    return progress


def random_moments(root: Path, step_seconds: float, seed: int) -> dict:
    """Killed again and again at a random moment, until a run gets to its end."""
    moments, kills = random.Random(seed), 0
    output = root / f"random-{seed}"
    while kills < 6 and not attempt(
        output, progress=killed_after(moments.randrange(1, STEPS - 3), moments.uniform(0, step_seconds))
    ):
        kills += 1
    while not attempt(output):
        pass
    return {"kills": kills, "outcome": outcome(output)}


def inside_a_checkpoint(root: Path, name: str, at: int) -> dict:
    """Killed at the `at`-th call of a function that writes, renames or removes a checkpoint's files."""

    def arm() -> None:
        import shutil

        import dcinterp.train.loop.checkpoints as checkpoints

        places = {
            "optimizer half written": (torch, "save"),
            "seal": (checkpoints, "seal"),
            "publish": (checkpoints, "publish"),
            "prune": (shutil, "rmtree"),
        }
        holder, function = places[name]
        real, calls = getattr(holder, function), [0]

        def deadly(*args, **kwargs):
            calls[0] += 1
            if calls[0] < at:
                return real(*args, **kwargs)
            if name == "optimizer half written":
                real(*args, **kwargs)
                os.truncate(args[1], os.path.getsize(args[1]) // 2)
            if name == "prune" and (inside := sorted(Path(args[0]).glob("*"))):
                inside[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(holder, function, deadly)

    output = root / f"{name}-{at}"
    killed = not attempt(output, prepare=arm)
    assert attempt(output)
    return {"killed": killed, "outcome": outcome(output)}


def main() -> None:
    root = Path(sys.argv[1])
    began = time.monotonic()
    assert attempt(root / "whole")
    seconds = time.monotonic() - began
    report = {"whole": outcome(root / "whole"), "seconds": seconds}
    for seed in (1, 2):
        report[f"random {seed}"] = random_moments(root, seconds / STEPS, seed)
    for name, at in [
        ("optimizer half written", 1),
        ("optimizer half written", 8),
        ("seal", 3),
        ("publish", 4),
        ("prune", 1),
        ("prune", 9),
        ("prune", 12),
    ]:
        report[f"{name} {at}"] = inside_a_checkpoint(root, name, at)
    sys.stdout.write(json.dumps(report))


main()
