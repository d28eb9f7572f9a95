"""What tests of the shipped models of puzzles share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dcinterp.checkpoints.names import SHIPPED
from dcinterp.train.config.recipe import read_config
from dcinterp.train.control.experiment import FINAL, Experiment, read_table


def answer_with(model: Any, prompt: str, other: str, stage: str) -> str:
    """The most likely token after `prompt`, with the query's weights of layer 1 at a stage taken from `other`."""
    taps = [tap for tap in model.hook_dict if tap.startswith(f"blocks.1.attn.{stage}.hook_w_q")]
    assert len(taps) == 3
    _, cache = model.run_with_cache(other, names_filter=taps)
    hooks = [(tap, lambda weights, hook: cache[hook.name]) for tap in taps]
    return str(model.tokenizer.decode(model.run_with_hooks(prompt, fwd_hooks=hooks)[0, -1].argmax()))


def first_seed(name: str, experiment: Experiment, arm: str, chosen: Mapping[str, Any]) -> tuple[float, float]:
    """The accuracies on pairs seen and held out of the run that a shipped model is, by the experiment's table.

    It must be the arm's first seed: by its config, and by the accuracies that were logged.
    """
    run = experiment.run(FINAL, arm, chosen, experiment.seeds[0])
    trained, asked = asdict(read_config(SHIPPED / name / "training.yaml")), asdict(run.config)
    assert asked["recipe"].pop("bf16") is None, "which a run decides by its device"
    assert not trained["recipe"].pop("bf16")
    assert trained == asked | {"output": trained["output"]}
    assert trained["output"] == f"runs/{experiment.folder.name}/{run.name}"
    row = read_table(experiment).set_index("name").loc[run.name]
    logged = map(json.loads, (SHIPPED / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    *_, last = (each["accuracy"]["1"] for each in logged if "accuracy" in each)
    assert last == {part: row[f"accuracy 1 {part}"] for part in ("seen", "held-out")}
    return row["accuracy 1 seen"], row["accuracy 1 held-out"]


def card(name: str) -> str:
    """The card of a shipped model, on one line."""
    return " ".join((SHIPPED / name / "README.md").read_text(encoding="utf-8").split())
