"""What a model learnt when: accuracy on held-out rows per QK pattern, against the tokens it had read.

    accuracy = answers whose every token is the most likely one / scored answers

It reads the metrics.jsonl of a training run or of a shipped model and computes nothing. It does not show why a pattern
was learnt when it was: the order of the documents (config.yaml, or training.yaml beside a shipped model) matters.

Where a run leaves combinations of a pattern and a relation out (`data.holdout`), "held-out" and "seen" stand beside the
patterns: those combinations, and the tasks that it is trained on.

Identity that the tests assert: "all" is the mean of the patterns, weighted by their answers.

    curves = dcinterp.training_curves("dcformer++")
    dcinterp.figures.plot(curves, examples=8)
    curves.learnt(0.8)  # steps and tokens by which each pattern was answered
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.checkpoints.names import folder_of
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError
from dcinterp.train.loop.metrics_file import by_step, read_metrics


@dataclass(frozen=True)
class TrainingCurves(Result):
    """accuracy [measurement, examples, pattern], and step, tokens read and latest loss at every measurement."""

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "step": ("measurement",),
        "tokens_read": ("measurement",),
        "loss": ("measurement",),
        "accuracy": ("measurement", "examples", "pattern"),
    }

    run: str
    patterns: tuple[str, ...]
    examples: tuple[int, ...]
    step: Int[Tensor, " measurement"]
    tokens_read: Int[Tensor, " measurement"]
    loss: Float[Tensor, " measurement"]
    accuracy: Float[Tensor, "measurement examples pattern"]

    def labels(self, axis: str) -> list[Any] | None:
        names: dict[str, list[Any]] = {"pattern": list(self.patterns), "examples": list(self.examples)}
        return names.get(axis)

    @property
    def has_sides(self) -> bool:
        """Whether the run is measured on combinations that it left out, beside the patterns."""
        return {"seen", "held-out"} < set(self.patterns)

    def learnt(self, level: float = 0.8) -> pd.DataFrame:
        """The first measurement at which each pattern was answered at `level` or better: one row per length of rows
        and pattern, with its step and the tokens read by then, empty where it never was. Measurements are as far
        apart as `evaluation.every`, and on few answers, so these are coarse."""
        rows = []
        for column, examples in enumerate(self.examples):
            for number, pattern in enumerate(self.patterns):
                there = (self.accuracy[:, column, number] >= level).nonzero().flatten()
                first = int(there[0]) if len(there) else None
                step, tokens = (None, None) if first is None else (int(self.step[first]), int(self.tokens_read[first]))
                rows.append({"examples": examples, "pattern": pattern, "step": step, "tokens": tokens})
        return pd.DataFrame(rows).astype({"step": "Int64", "tokens": "Int64"})


@analysis(
    title="Training curves",
    question="What did a run learn when?",
    guide="training.md",
    example={"run": "dcformer++"},
)
def training_curves(run: str | Path) -> TrainingCurves:
    """The curves of a training run.

    Args:
        run: the output folder of `dcinterp train`, or the name of a shipped model.

    Raises:
        UserError: there is no metrics.jsonl, or it holds no measurement of accuracy yet.
    """
    path = folder_of(run) / "metrics.jsonl"
    loss, measured, others = float("nan"), [], False
    for record in by_step(read_metrics(path)):
        loss = record.get("loss", loss)
        others |= "validation_loss" in record
        if record.get("accuracy"):
            measured.append((record["step"], record["tokens"], loss, record["accuracy"]))
    if not measured and others:
        raise UserError(f"{path} is of a run on text or images, which has no QK patterns; use dcinterp.loss_curves.")
    if not measured:
        raise UserError(f"{path} holds no accuracy yet; wait for the run's first evaluation.")
    steps, tokens, losses, accuracies = zip(*measured, strict=True)
    # A resumed run may measure on rows of other lengths than before: what was not measured is NaN.
    examples = tuple(sorted({int(number) for row in accuracies for number in row}))
    patterns = tuple(dict.fromkeys(pattern for row in accuracies for answers in row.values() for pattern in answers))
    return TrainingCurves(
        run=str(run),
        patterns=patterns,
        examples=examples,
        step=torch.tensor(steps),
        tokens_read=torch.tensor(tokens),
        loss=torch.tensor(losses),
        accuracy=torch.tensor(
            [[[row.get(str(n), {}).get(p, float("nan")) for p in patterns] for n in examples] for row in accuracies]
        ),
    )
