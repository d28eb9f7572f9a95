"""A summary of a run, printed before its first step."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dcinterp.support.text import readable
from dcinterp.train.config.recipe import DataSection, TrainConfig

FLOPS_TO_TIME = 2e11
"""The most that timing a step may cost; a second or a few on a laptop."""

NAMED_PACKAGES = 4
"""Of the packages whose source is read, so many are named."""


@dataclass(frozen=True)
class RunSummary:
    """A run before its first step: model, data, first step and output folder."""

    config: TrainConfig
    parameters: int
    step: int
    seconds_per_step: Callable[[], float | None]
    trained: int = 0  # parameters that are trained; all of them when 0

    def sentences(self, *, resuming: bool = False) -> list[str]:
        """For a person, one a line; a step is timed for them, which takes a moment.

        Args:
            resuming: whether the person expects the run to go on from somewhere.
        """
        config, steps = self.config, self.config.steps
        where = f"from step {self.step:,} of {steps:,}" if self.step else f"{steps:,} steps"
        if resuming and not self.step:
            where += " from the start, for there is no checkpoint to go on from"
        model = self._model()
        seconds = self.seconds_per_step()
        takes = f"It takes {roughly(seconds * (steps - self.step))} here, by timing one step. " if seconds else ""
        return [
            f"Training {model} on {describe_data(config.data)}: {where}.",
            f"{takes}Everything is written to {config.output}.",
            f"Ctrl-C stops it at a checkpoint; to go on: {resume_command(Path(config.output))}",
        ]

    def _model(self) -> str:
        def count(number: int) -> str:
            return readable(number, ("thousand", "million", "billion"))

        section = self.config.model
        if section.train == "composition":
            return f"the composition of {section.start} ({count(self.trained)} of {count(self.parameters)} parameters)"
        return f"{section.start or section.preset} ({count(self.parameters)} parameters)"


def resume_command(output: Path) -> str:
    """The line that continues the run in `output`, from the folder where it was started."""
    return f"dcinterp train {shlex.quote(str(output / 'config.yaml'))} --resume"


def describe_data(data: DataSection) -> str:
    """What a run reads, in a few words."""
    source = data.phases[0].source
    if source == "text":
        sources = _name_packages(data.text.packages) or "the source files of Python's standard library"
        return data.text.path or data.text.dataset or sources
    if source == "images":
        return data.images.path or data.images.dataset or "scikit-learn's handwritten digits"
    if source == "puzzle":
        return f"the puzzle {data.puzzle.name!r}"
    less = len(set(data.holdout))
    return "the synthetic tasks" + (f" without {less} combination{'s' * (less > 1)}" if less else "")


def _name_packages(packages: Sequence[str]) -> str:
    """The installed packages whose source is read, the first few by name; "" for none."""
    if not packages:
        return ""
    more = len(packages) - NAMED_PACKAGES
    return f"the Python sources of {', '.join(packages[:NAMED_PACKAGES])}" + (f" and {more} more" if more > 0 else "")


def time_step(model: PreTrainedModel, batch: Mapping[str, Tensor], parts: int) -> float | None:
    """Seconds that a step on `batch` takes, by the second of two passes; None where finding out would take long.

    The model is left as it was. The optimiser and measurements on held-out documents are not counted.

    Args:
        model: the model, not compiled.
        batch: a part of the batch of a step.
        parts: how many of them make a step.
    """
    tokens = batch["input_ids"].numel() if "input_ids" in batch else batch["pixel_values"].shape[0] * 64
    if 2 * 6 * sum(p.numel() for p in model.parameters()) * tokens > FLOPS_TO_TIME:
        return None
    seconds = 0.0
    training = model.training
    model.train()
    for _ in range(2):
        began = time.monotonic()
        loss = model(**{name: value.to(model.device) for name, value in batch.items()}).loss
        loss.backward()
        float(loss.detach())
        seconds = time.monotonic() - began
        model.zero_grad(set_to_none=True)
    model.train(training)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return seconds * parts


def roughly(seconds: float) -> str:
    """A time in words, such as "about 5 minutes"."""
    if seconds < 90:
        whole = max(1, round(seconds))
        return f"about {whole} second{'s' * (whole > 1)}"
    if seconds < 5400:
        return f"about {round(seconds / 60)} minutes"
    return f"about {round(seconds / 3600)} hours"
