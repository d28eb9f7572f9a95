"""What a model learnt when: accuracy on held-out rows per QK pattern, against the tokens it had read.

    accuracy = answers whose every token is the most likely one / scored answers

It reads the metrics.jsonl of a training run or of a shipped model and computes nothing. It does not show why a pattern
was learnt when it was: the order of the documents (config.yaml, or training.yaml beside a shipped model) matters.

Identity that the tests assert: "all" is the mean of the patterns, weighted by their answers.

    curves = dcinterp.training_curves("dcformer++")
    dcinterp.figures.plot(curves, examples=8)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.analysis.registry import analysis
from dcinterp.analysis.result import Result
from dcinterp.errors import UserError
from dcinterp.model.metrics import read_metrics

SHIPPED = Path(__file__).parents[1] / "pretrained"


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


@analysis(title="Training curves")
def training_curves(run: str | Path) -> TrainingCurves:
    """The curves of a training run.

    Args:
        run: the output folder of `dcinterp train`, or the name of a shipped model.

    Raises:
        UserError: there is no metrics.jsonl, or it holds no measurement of accuracy yet.
    """
    shipped = SHIPPED / str(run)
    path = (shipped if shipped.is_dir() else Path(run)) / "metrics.jsonl"
    loss, measured, others = float("nan"), [], False
    for record in read_metrics(path):
        loss = record.get("loss", loss)
        others |= "validation_loss" in record
        if "accuracy" in record:
            measured.append((record["step"], record["tokens"], loss, record["accuracy"]))
    if not measured and others:
        raise UserError(f"{path} is of a run on text or images, which has no QK patterns; use dcinterp.loss_curves.")
    if not measured:
        raise UserError(f"{path} holds no accuracy yet; wait for the run's first evaluation.")
    steps, tokens, losses, accuracies = zip(*measured, strict=True)
    examples = tuple(int(number) for number in accuracies[0])
    patterns = tuple(accuracies[0][str(examples[0])])
    return TrainingCurves(
        run=str(run),
        patterns=patterns,
        examples=examples,
        step=torch.tensor(steps),
        tokens_read=torch.tensor(tokens),
        loss=torch.tensor(losses),
        accuracy=torch.tensor([[[row[str(n)][p] for p in patterns] for n in examples] for row in accuracies]),
    )
