"""Loss on held-out text or images, against the tokens that a model had read.

    validation loss = mean over held-out rows of -log p(next token), in nats

It reads the metrics.jsonl of a training run and computes nothing. A loss says how well the text is predicted, not what
the model has learnt of it; losses of two tokenizers compare in bits per byte only (metrics.jsonl has those too).

Identity that the tests assert: every number is the run's own.

    curves = dcinterp.loss_curves("runs/my-novel")
    curves.validation_loss, curves.tokens_read
    dcinterp.figures.plot(curves)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.checkpoints.names import folder_of
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError
from dcinterp.train.loop.metrics_file import by_step, read_metrics


@dataclass(frozen=True)
class LossCurves(Result):
    """At every measurement: step, tokens read, the latest training loss, and the held-out loss."""

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "step": ("measurement",),
        "tokens_read": ("measurement",),
        "training_loss": ("measurement",),
        "validation_loss": ("measurement",),
    }

    run: str
    step: Int[Tensor, " measurement"]
    tokens_read: Int[Tensor, " measurement"]
    training_loss: Float[Tensor, " measurement"]
    validation_loss: Float[Tensor, " measurement"]

    def labels(self, axis: str) -> list[Any] | None:
        return self.step.tolist() if axis == "measurement" else None


@analysis(
    title="Loss curves",
    question="How did the loss fall?",
    guide="training.md",
    example={"run": "runs/my-run"},
)
def loss_curves(run: str | Path) -> LossCurves:
    """The losses of a run on text or images, where both were measured.

    Args:
        run: the output folder of `dcinterp train`, or the name of a shipped model.

    Raises:
        UserError: there is no metrics.jsonl, or it holds no held-out loss yet.
    """
    path = folder_of(run) / "metrics.jsonl"
    loss, measured = math.nan, []
    for record in by_step(read_metrics(path)):
        loss = record.get("loss", loss)
        if "validation_loss" in record:
            measured.append((record["step"], record["tokens"], loss, record["validation_loss"]))
    if not measured:
        raise UserError(
            f"{path} holds no held-out loss yet; wait for the first evaluation, or use dcinterp.training_curves for a "
            "run on tasks."
        )
    steps, tokens, training, held_out = zip(*measured, strict=True)
    return LossCurves(
        run=str(run),
        step=torch.tensor(steps),
        tokens_read=torch.tensor(tokens),
        training_loss=torch.tensor(training),
        validation_loss=torch.tensor(held_out),
    )
