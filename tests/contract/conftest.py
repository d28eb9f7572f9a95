"""What the declared examples of the analyses read: a sweep's table, and a run that logged its mechanism."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import dcinterp
from dcinterp.checkpoints.names import SHIPPED, shipped_models
from dcinterp.train.config.recipe import DataSection, Phase, PuzzleSection, TrainConfig, write_config
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.loop.mechanism_log import branch_strengths, layer_variances


@cache
def _read_once(read: Callable[..., Any], name: str, **options: Any) -> Any:
    return read(name, **options)


@pytest.fixture
def loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shipped model is read once, not for every command and every replay: what they do leaves nothing behind."""
    module = importlib.import_module("dcinterp.checkpoints.load")
    read = module.load

    def load(name: str | Path, **options: Any) -> Any:
        return _read_once(read, str(name), **options) if str(name) in shipped_models() else read(name, **options)

    monkeypatch.setattr(module, "load", load)


@pytest.fixture(scope="module")
def commands_once() -> Iterator[None]:
    """The parsers of all verbs are built once: a process does that once too, and here hundreds of commands run."""
    import typer.main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, write_experiment: Callable[..., Path]) -> Path:
    """A folder in which every declared example can be run."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "runs/scaling").mkdir(parents=True)
    families = ("transformer++", "dcformer++")
    rows = [(f, c, (20 + len(f)) * c**-0.05) for f in families for c in (1e15, 4e15, 2e16)]
    pd.DataFrame(rows, columns=["family", "flops", "loss"]).to_csv(folder / "runs/scaling/results.csv", index=False)
    write_experiment(folder / "experiments/recombination", {"plain": [0.5, 0.6], "DCMHA": [0.7, 0.9]})
    log = folder / "runs/my-run/watch"
    log.mkdir(parents=True)
    losses = [{"step": step, "tokens": 9 * step, "loss": 5.0 - step, "validation_loss": 5.5 - step} for step in (1, 2)]
    (log.parent / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in losses))
    model = dcinterp.read_model(SHIPPED / "dcformer++")
    strengths = branch_strengths(model, {"input_ids": torch.arange(5, 25).view(2, 10)})
    for step in (1, 2):
        seen = {"variances": layer_variances(model), "strengths": strengths}
        save_file(seen, log / f"step-{step:07d}.safetensors")
    keep_checkpoints(log.parent)
    return folder


def keep_checkpoints(run: Path) -> None:
    """What a run on a puzzle keeps, with random models in place of trained ones."""
    puzzle = DataSection(phases=(Phase(source="puzzle"),), puzzle=PuzzleSection(options={"questions": 1}))
    write_config(TrainConfig(output=str(run), data=puzzle), run / "config.yaml")
    source = PuzzleSource(puzzle.puzzle, run / "tokenizer")
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 0}
    config = dcinterp.DCFormerConfig.preset("tiny-dcformer++", **(sizes | source.model_fields()))
    for step in (1, 2, 3):
        place = run / f"checkpoints/checkpoint-{step}"
        dcinterp.DCFormerForCausalLM(config).save_pretrained(place)
        source.tokenizer.save_pretrained(place)
