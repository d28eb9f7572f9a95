"""Run by test_processes.py: one training run by one process, in two accumulated parts, and by two gloo processes."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from dcinterp.train.config.recipe import DataSection, EvaluationSection, ModelSection, Phase, RecipeSection, TrainConfig
from dcinterp.train.loop.run import train


def config(output: Path) -> TrainConfig:
    return TrainConfig(
        output=str(output),
        model=ModelSection(
            changes={"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
        ),
        data=DataSection(phases=(Phase(source="pairs", steps=6, batch_size=7), Phase(steps=6, batch_size=6))),
        recipe=RecipeSection(learning_rate=3e-3, threads=1),
        evaluation=EvaluationSection(every=12, answers_per_task=1, examples=(1,)),
        save_every=8,
        log_every=1,
    )


def child(run: TrainConfig, rank: int, processes: int, port: int) -> int:
    """A process with the environment that `torchrun --nproc_per_node N` gives."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if processes > 1:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
            os.environ |= {"LOCAL_WORLD_SIZE": str(processes)}
        train(run)
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)
    return 0


def launch(run: TrainConfig, processes: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = [child(run, rank, processes, port) for rank in range(processes)]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * processes


def main() -> None:
    root = Path(sys.argv[1])
    launch(config(root / "one"), 1)
    halves = config(root / "halves")
    launch(replace(halves, recipe=replace(halves.recipe, gradient_accumulation=2)), 1)
    launch(config(root / "two"), 2)


main()
