"""What a run records while it trains."""

from __future__ import annotations

import json
import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import (
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

import synthetic_tasks
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Cancelled, Progress
from dcinterp.support.whole_files import whole
from dcinterp.train.config.recipe import EvaluationSection
from dcinterp.train.data.batches import Document, Encoder, TaskSource, answers_right, pad, shuffle_index
from dcinterp.train.data.images import ImageSource, scale_pixels
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.text import TextSource
from dcinterp.train.loop.metrics_file import accuracy_column, read_records

log = logging.getLogger(__name__)


class Metrics:
    """A JSON-lines file of what was measured at which step; continuing a run drops what lies ahead of it."""

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        self.path, self.writes = path, writes

    def rewind(self, step: int) -> None:
        """Forget everything measured after `step`, a last line that was cut short, and lines that nobody can read."""
        if self.writes and self.path.is_file():
            records, wrong = read_records(self.path, needed=("step", "tokens"))
            for number in wrong:
                log.warning("Line %d of %s is not a measurement of a run and was removed.", number, self.path)
            lines = [json.dumps(record) for record in records if record["step"] <= step]
            with whole(self.path) as place:
                place.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def write(self, **values: Any) -> None:
        if self.writes:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")


OVER_PATTERNS = ("seen", "held-out", "all")
"""What is measured on tasks of several QK patterns; it stands after these, in this order."""


class HeldOutAccuracy(TrainerCallback):
    """Exact match on rows of held-out examples, per QK pattern, every so many steps.

    Where combinations are left out (`data.holdout`), also on those ("held-out") and on the tasks that phases draw from
    ("seen").
    """

    def __init__(self, section: EvaluationSection, data_source: TaskSource, metrics: Metrics) -> None:
        self.section, self.metrics, self.sides = section, metrics, data_source.sides
        encoder = data_source.encoder
        self.pad = encoder.pad
        self.rows = {number: self._held_out(number, encoder) for number in section.examples}

    @property
    def columns(self) -> tuple[str, ...]:
        """What is measured, as a table of runs calls it."""
        found = {number: _in_order({part for parts, _ in rows for part in parts}) for number, rows in self.rows.items()}
        return tuple(accuracy_column(number, part) for number, parts in found.items() for part in parts)

    @property
    def longest(self) -> dict[int, int]:
        """{examples: tokens of the longest row with so many}."""
        return {number: max(len(document.ids) for _, document in rows) for number, rows in self.rows.items()}

    def _held_out(self, examples: int, encoder: Encoder) -> list[tuple[tuple[str, ...], Document]]:
        """(QK pattern and side of `data.holdout`, row) for every held-out row of so many examples."""
        rows = []
        for task in synthetic_tasks.TASKS.values():
            try:
                scored = len(synthetic_tasks.generate(task, 1, seed=0, examples=examples)[0].scored)
                count = -(-self.section.answers_per_task // scored)
                made = synthetic_tasks.generate(task, count, seed=0, examples=examples, split="held-out")
            except ValueError as error:  # so many examples are not to be had
                raise UserError(f"evaluation.examples has {examples}: {error}.") from error
            for row in made:
                document = encoder.document([(e.prompt, e.answer) for e in row.examples])
                rows.append(((task.qk, *self.sides.of(task.id), "all"), _keep_scored(document, row)))
        return rows

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.section.every == 0 or state.global_step == state.max_steps:
            accuracy = {str(n): self.measure(kwargs["model"], rows) for n, rows in self.rows.items()}
            self.metrics.write(step=state.global_step, tokens=state.num_input_tokens_seen, accuracy=accuracy)

    @torch.no_grad()
    def measure(
        self, model: PreTrainedModel, rows: list[tuple[tuple[str, ...], Document]], batch_size: int = 16
    ) -> dict[str, float]:
        """Share of scored answers whose every token is the most likely one, in each part that a row counts in."""
        right: dict[str, list[bool]] = defaultdict(list)
        rows = sorted(rows, key=lambda row: len(row[1].ids))
        with _evaluation_mode(model):
            for start in range(0, len(rows), batch_size):
                chosen = rows[start : start + batch_size]
                batch = pad([document for _, document in chosen], self.pad, answers_only=True)
                guesses = model(input_ids=batch["input_ids"].to(model.device), use_cache=False).logits.argmax(-1).cpu()
                for (parts, _), guess, labels in zip(chosen, guesses, batch["labels"], strict=True):
                    for part in parts:
                        right[part] += answers_right(guess[None, :-1], labels[None, 1:])
        return {part: sum(right[part]) / len(right[part]) for part in _in_order(right)}


def _in_order(parts: Iterable[str]) -> list[str]:
    """QK patterns, and then what is over several."""
    return sorted(parts, key=lambda part: OVER_PATTERNS.index(part) if part in OVER_PATTERNS else -1)


class HeldOutText(TrainerCallback):
    """Mean loss per token of held-out rows, every so many steps; also in bits per byte, which tokenizers share."""

    columns = ("validation_loss", "bits_per_byte")

    def __init__(self, section: EvaluationSection, data_source: TextSource, metrics: Metrics) -> None:
        self.section, self.metrics = section, metrics
        rows = data_source.rows["validation"]
        chosen = [
            shuffle_index(number, len(rows), "validation") for number in range(min(section.validation_rows, len(rows)))
        ]
        self.rows = torch.from_numpy(rows[sorted(chosen)].astype("int64"))
        record = data_source.record["validation"]
        self.tokens_per_byte = record["tokens"] / record["bytes"]

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.section.every == 0 or state.global_step == state.max_steps:
            loss = self.measure(kwargs["model"])
            bits = loss / math.log(2) * self.tokens_per_byte
            self.metrics.write(
                step=state.global_step, tokens=state.num_input_tokens_seen, validation_loss=loss, bits_per_byte=bits
            )

    @torch.no_grad()
    def measure(self, model: PreTrainedModel, batch_size: int = 16) -> float:
        """Mean next-token loss of the held-out rows, in nats."""
        with _evaluation_mode(model):
            losses = [
                float(model(input_ids=ids, labels=ids, use_cache=False).loss) * len(ids)
                for ids in self.rows.to(model.device).split(batch_size)
            ]
        return sum(losses) / len(self.rows)


class HeldOutImages(TrainerCallback):
    """Share of held-out images whose class is the most likely one, and their mean loss."""

    columns = ("validation_loss", "image_accuracy")

    def __init__(self, section: EvaluationSection, data_source: ImageSource, metrics: Metrics) -> None:
        self.section, self.metrics = section, metrics
        pixels = data_source.pixels["validation"]
        chosen = sorted(
            shuffle_index(number, len(pixels), "validation")
            for number in range(min(section.validation_rows, len(pixels)))
        )
        self.pixels, self.labels = scale_pixels(pixels[chosen]), data_source.labels["validation"][chosen]

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.section.every == 0 or state.global_step == state.max_steps:
            loss, accuracy = self.measure(kwargs["model"])
            self.metrics.write(
                step=state.global_step,
                tokens=state.num_input_tokens_seen,
                validation_loss=loss,
                image_accuracy=accuracy,
            )

    @torch.no_grad()
    def measure(self, model: PreTrainedModel, batch_size: int = 64) -> tuple[float, float]:
        """(mean loss in nats, accuracy) on the held-out images."""
        with _evaluation_mode(model):
            logits = torch.cat(
                [model(pixels.to(model.device)).logits.cpu() for pixels in self.pixels.split(batch_size)]
            )
        hits = logits.argmax(-1) == self.labels
        return float(cross_entropy(logits.float(), self.labels)), float(hits.float().mean())


class HeldOutPuzzle(TrainerCallback):
    """Share of a puzzle's answers whose every token is the most likely one, for each of its parts."""

    def __init__(self, section: EvaluationSection, data_source: PuzzleSource, metrics: Metrics) -> None:
        self.section, self.metrics = section, metrics
        self.parts = {part: data_source.held_out(part, section.validation_rows) for part in data_source.puzzle.PARTS}

    @property
    def columns(self) -> tuple[str, ...]:
        """What is measured, as a table of runs calls it."""
        return tuple(accuracy_column(1, part) for part in self.parts)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.section.every == 0 or state.global_step == state.max_steps:
            accuracy = {part: self.measure(kwargs["model"], rows) for part, rows in self.parts.items()}
            self.metrics.write(step=state.global_step, tokens=state.num_input_tokens_seen, accuracy={"1": accuracy})

    @torch.no_grad()
    def measure(self, model: PreTrainedModel, rows: dict[str, torch.Tensor], batch_size: int = 64) -> float:
        """Share of the answers that are right."""
        right: list[bool] = []
        with _evaluation_mode(model):
            for ids, labels in zip(rows["input_ids"].split(batch_size), rows["labels"].split(batch_size), strict=True):
                guesses = model(input_ids=ids.to(model.device), use_cache=False).logits.argmax(-1).cpu()
                right += answers_right(guesses[:, :-1], labels[:, 1:])
        return sum(right) / len(right)


STEPS_SHOWN = 20
"""Steps whose mean loss a progress message shows."""


class Reporter(TrainerCallback):
    """Losses to the metrics file, every step to the progress callback; when that cancels, a checkpoint and the end."""

    def __init__(self, metrics: Metrics, progress: Progress | None) -> None:
        self.metrics, self.progress = metrics, progress
        self.cancelled: Cancelled | None = None
        self.losses: deque[float] = deque([0.0], maxlen=STEPS_SHOWN)
        self.started = (0.0, 0, 0)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.metrics.rewind(state.global_step)
        self.started = (time.monotonic(), state.num_input_tokens_seen, state.global_step)

    def add_loss(self, loss: float) -> None:
        """Add the loss of a part of the current batch."""
        self.losses[-1] += loss

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs.get("logs") or {}
        if "loss" in logs:
            self.metrics.write(
                step=state.global_step,
                tokens=state.num_input_tokens_seen,
                loss=float(logs["loss"]),
                learning_rate=float(logs["learning_rate"]),
                gradient_norm=float(logs["grad_norm"]),
            )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.progress is not None:
            began, tokens, step = self.started
            seconds = max(time.monotonic() - began, 1e-9)
            rate = (state.num_input_tokens_seen - tokens) / seconds
            left = seconds / max(1, state.global_step - step) * (state.max_steps - state.global_step)
            loss = sum(self.losses) / len(self.losses)
            self.losses.append(0.0)
            message = f"loss {loss:.3f}, {rate:,.0f} tokens/s, {timedelta(seconds=round(left))} left"
            try:
                self.progress(state.global_step, state.max_steps, message)
            except Cancelled as cancelled:
                # Several processes would have to agree on the step to stop at; theirs ends at the last checkpoint.
                if args.world_size > 1:
                    raise
                if state.global_step < state.max_steps:
                    self.cancelled = cancelled
                    control.should_save = control.should_training_stop = True


@contextmanager
def _evaluation_mode(model: PreTrainedModel) -> Iterator[None]:
    """The model in evaluation mode inside the block, and as it was after it."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _keep_scored(document: Document, row: synthetic_tasks.Row) -> Document:
    """`document` with only the answers that the released file scores (shots 2 to 7 of a row of eight)."""
    unscored = len(row.examples) - len(row.scored)
    answers, seen, inside = [], 0, False
    for is_answer in document.answers:
        seen += is_answer and not inside
        inside = is_answer
        answers.append(is_answer and seen > unscored)
    return Document(document.ids, tuple(answers))
