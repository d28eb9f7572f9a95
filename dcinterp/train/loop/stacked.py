"""Several runs that differ in their seeds and rates alone, trained side by side as one model.

A step of a small model on a GPU is mostly the start of its operations, and ten runs side by side start as many as one.
On a CPU each step is made run by run. Each run is the one that `dcinterp.train.loop.run.train` would make on a CPU, to
rounding: the same initial weights, documents, schedule, clipping and decay, in float32.

    python -m dcinterp.train.loop.stacked A.yaml B.yaml --device cuda
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import TrainerControl, TrainerState, set_seed

from dcinterp.model.build import build_model
from dcinterp.support.digest import json_digest
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Cancelled, Progress, silent
from dcinterp.support.source_commit import source_commit
from dcinterp.train.config.recipe import TrainConfig, read_config, require_ranges, write_config
from dcinterp.train.control.resume import differences, record
from dcinterp.train.control.run_lock import lock_run
from dcinterp.train.control.signals import SIGNALS, stop_on_signals
from dcinterp.train.data.batches import Batches, DataSource
from dcinterp.train.data.data_source import open_data_source, require_fitting, resolve_steps, row_padding
from dcinterp.train.data.made_documents import open_made
from dcinterp.train.loop import checkpoints
from dcinterp.train.loop.callbacks import Metrics
from dcinterp.train.loop.divergence import NOT_FINITE, TrainingDiverged
from dcinterp.train.loop.run import (
    evaluation_callback,
    join,
    make_folder,
    make_output,
    model_config,
    require_valid_start,
    resolve,
)
from dcinterp.train.loop.stacked_model import StackedAdamW, StackedBatch, StackedBatches, StackedModel
from dcinterp.train.loop.trainer import on_cpu

log = logging.getLogger(__name__)

FREE = ("output", "recipe.seed", "recipe.learning_rate", "data.seed")
"""What runs of one stack may differ in."""
CHECKPOINT = "stack.safetensors"
"""In the folder of the first run: where all runs of a stack are, until they end."""
ASIDE = "model-of-stack"
"""Where a model waits until those of all runs of its stack are written."""


def train_stacked(
    configs: Sequence[TrainConfig],
    *,
    device: str = "",
    documents: Path | None = None,
    workers: int = 0,
    progress: Progress | None = None,
) -> list[Path]:
    """Train all runs side by side and return the folders of their models, as `train` writes them one by one.

    The same runs go on at their last checkpoint, where they were stopped.

    Args:
        configs: runs that differ in `FREE` alone.
        device: where to; a GPU where there is one, else the CPU.
        documents: folder of what `make_documents` has made; what is not there is made here.
        workers: processes that make or read the documents; with 0 that is done between the steps.
        progress: called after every step; raising `Cancelled` stops the runs at a checkpoint of that step.

    Raises:
        UserError: the runs differ in something else, ask for what a stack cannot do, or one of their folders holds a
            run of its own.
        RuntimeError: a CUDA graph does not give what the model gives.
        TrainingDiverged: the loss of some became NaN or infinite. The models of all others are written.
        Cancelled: `progress` raised it.
    """
    require_ranges(configs[0].recipe)
    require_alike(configs)
    configs = [resolve(replace(config, recipe=replace(config.recipe, bf16=False))) for config in configs]
    where = find_device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)  # where graphs are made
    with ExitStack() as locks:
        tell: list[Progress] = [progress or silent]
        for config in configs:
            make_output(Path(config.output))
            tell.append(locks.enter_context(lock_run(Path(config.output))))
        # Before anything is written there, and again where the checkpoint turns out to be of other runs.
        if not (Path(configs[0].output) / CHECKPOINT).is_file():
            _require_new(configs)
        stack = Stack(configs, where)
        if not (begin := stack.resume()):
            _require_new(configs)
        stack.train(begin, documents, workers, join(*tell))
        return stack.save_models()


def find_device(name: str) -> torch.device:
    """The device of that name; a GPU where there is one if it is empty. A GPU has a number, as CUDA asks for."""
    device = torch.device(name or ("cpu" if on_cpu() else torch.accelerator.current_accelerator()) or "cpu")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def require_alike(configs: Sequence[TrainConfig]) -> None:
    """Raises:
    UserError: these are not runs of one stack; the sentence names the key.
    """
    first = configs[0]
    for other in configs[1:]:
        for key in differences(first, other):
            if key not in FREE:
                raise UserError(
                    f"Stacked runs may differ in {', '.join(FREE)}, and {Path(other.output).name} differs in {key}."
                )
    recipe = first.recipe
    unable = {
        "model.start": bool(first.model.start),
        "recipe.compile": recipe.compile,
        "recipe.gradient_checkpointing": recipe.gradient_checkpointing,
        "recipe.gradient_accumulation": recipe.gradient_accumulation != 1,
        "recipe.bf16": bool(recipe.bf16),
        "report_to": bool(first.report_to),
        "keep_checkpoints": first.keep_checkpoints > TrainConfig.keep_checkpoints,
        "the source images": any(phase.source == "images" for phase in first.data.phases),
    }
    if first.evaluation.watch:
        raise UserError("Stacked runs record no branch strengths; set evaluation.watch: false, or train one by one.")
    for key, asked in unable.items():
        if asked:
            raise UserError(f"Stacked runs cannot do what {key} asks for; leave it out, or train them one by one.")


def _require_new(configs: Sequence[TrainConfig]) -> None:
    for config in configs:
        make_folder(Path(config.output), resuming=False)


@dataclass
class Run:
    """One run of a stack, and how far it is."""

    config: TrainConfig
    data_source: DataSource
    metrics: Metrics
    evaluation: Any  # one of several callbacks, all with `metrics`
    tokens: int = 0
    finite: bool = True

    @property
    def output(self) -> Path:
        return Path(self.config.output)


class Stack:
    """The runs, their models and their optimiser."""

    def __init__(self, configs: Sequence[TrainConfig], device: torch.device) -> None:
        """Open the data of every run, and build its model on the CPU, as `train` does."""
        if configs[0].recipe.threads:
            torch.set_num_threads(configs[0].recipe.threads)
        torch.backends.cudnn.allow_tf32 = False  # convolutions would round to 10 bits otherwise
        self.device = device
        self.runs: list[Run] = []
        models: list[nn.Module] = []
        for config in configs:
            output = Path(config.output)
            data_source = open_data_source(config, output)
            config = resolve_steps(config, data_source)
            require_valid_start(config, output)
            metrics = Metrics(output / "metrics.jsonl")
            built = model_config(config, data_source)
            require_fitting(config, data_source, built)
            if self.runs:  # what is held out is the same for all of them
                evaluation = copy.copy(self.runs[0].evaluation)
                evaluation.metrics = metrics
            else:
                evaluation = evaluation_callback(config, data_source, metrics, built)
            set_seed(config.recipe.seed)
            models.append(build_model(built))
            self.runs.append(Run(config, data_source, metrics, evaluation))
        self.first = self.runs[0].config
        if any(run.config.steps != self.first.steps for run in self.runs):
            raise UserError("The documents of these runs make unequal numbers of steps; give steps instead of tokens.")
        self.model = StackedModel(models, device, self.first.recipe)
        self.optimizer = StackedAdamW(self.model, [run.config for run in self.runs])
        self.summed, self.since = torch.zeros(len(self.runs), device=device), 0
        self.began = time.monotonic()  # or as long before as earlier starts took

    def train(self, begin: int, documents: Path | None, workers: int, tell: Progress) -> None:
        """All steps after `begin`, with a checkpoint every `save_every` and at the end."""
        for run in self.runs:
            run.metrics.rewind(begin)
            record(
                run.output / "history.jsonl",
                step=begin,
                changes={},
                damaged=[],
                material=run.data_source.digest(),
                processes=1,
                torch=torch.__version__,
                transformers=transformers.__version__,
                stacked=len(self.runs),
                device=str(self.device),
                commit=source_commit(),
            )
            write_config(run.config, run.output / "config.yaml")
        batches = [open_made(Batches(run.config.data, run.data_source), documents) for run in self.runs]
        dataset = StackedBatches(batches, row_padding(self.runs[0].data_source))
        steps, began, message = self.first.steps, time.monotonic(), ""
        order = range(begin, steps)
        loader = DataLoader(
            dataset,
            batch_size=None,
            sampler=order,
            num_workers=workers,
            worker_init_fn=_leave_signals,
        )
        self.model.module.train()
        for step, batch in zip(order, loader, strict=True):
            norms = self._step(step, batch)
            done = step + 1
            measures, logs = (
                done % each == 0 or done == steps for each in (self.first.evaluation.every, self.first.log_every)
            )
            if measures or logs:
                self._check()
            if measures:
                self._measure(done)
            if logs:
                left = (time.monotonic() - began) / (done - begin) * (steps - done)
                message = f"{self._log(done, norms)}, {timedelta(seconds=round(left))} left"
            stopped = None
            try:
                tell(done, steps, message)
            except Cancelled as cancelled:
                stopped = cancelled
            if stopped or done % self.first.save_every == 0 or done == steps:
                self._save(done)
            if stopped and done < steps:
                raise stopped

    def _step(self, step: int, batch: StackedBatch) -> Tensor:
        there = StackedBatch(*(x.to(self.device, non_blocking=True) for x in batch))
        losses, gradients = self.model.gradients(there)
        self.summed += losses
        for run, tokens in zip(self.runs, batch.tokens.tolist(), strict=True):
            run.tokens += tokens
        return self.optimizer.step(step, gradients)

    def _log(self, done: int, norms: Tensor) -> str:
        """A line of metrics for every run, as the Trainer's; returns the mean loss in words."""
        means = (self.summed / (done - self.since)).tolist()
        share = self.optimizer.share(done - 1) * self.model.groups[0].share
        for run, mean, norm in zip(self.runs, means, norms.tolist(), strict=True):
            if run.finite and done % self.first.log_every == 0:
                rate = run.config.recipe.learning_rate * share
                run.metrics.write(step=done, tokens=run.tokens, loss=mean, learning_rate=rate, gradient_norm=norm)
        self.summed.zero_()
        self.since = done
        finite = [mean for run, mean in zip(self.runs, means, strict=True) if run.finite]
        return f"mean loss {sum(finite) / max(1, len(finite)):.3f} of {len(finite)} runs"

    def _check(self) -> None:
        """Runs whose weights or losses are not finite any more are left out from here on."""
        for run, weights, loss in zip(self.runs, self.model.finite(), self.summed.isfinite().tolist(), strict=True):
            run.finite = run.finite and weights and loss

    def _measure(self, done: int) -> None:
        for number, run in enumerate(self.runs):
            if run.finite:
                state = TrainerState(global_step=done, max_steps=self.first.steps, num_input_tokens_seen=run.tokens)
                run.evaluation.on_step_end(None, state, TrainerControl(), model=self.model.run(number))

    def _save(self, done: int) -> None:
        """Where all runs are, whole or not at all."""
        place = self.runs[0].output / CHECKPOINT
        aside = place.with_suffix(".unfinished")
        tensors = {name: x.contiguous() for name, x in (self.optimizer.tensors() | {"summed": self.summed}).items()}
        state = {
            "runs": self._digest(),
            "step": done,
            "since": self.since,
            "tokens": [run.tokens for run in self.runs],
            "finite": [run.finite for run in self.runs],
            "seconds": time.monotonic() - self.began,
        }
        try:
            save_file(tensors, aside, metadata={"stack": json.dumps(state)})
            checkpoints.force(aside)
            aside.replace(place)
        except (OSError, SafetensorError) as error:
            raise checkpoints.write_error(f"The checkpoint of step {done}", error, place.parent) from error

    def resume(self) -> int:
        """The step of the last checkpoint of these very runs, whose numbers are then here; 0 without one."""
        place = self.runs[0].output / CHECKPOINT
        if not place.is_file():
            return 0
        try:
            with safe_open(place, framework="pt") as file:
                state = json.loads((file.metadata() or {}).get("stack", "{}"))
                same = state.get("runs") == self._digest()
                names = file.keys() if same else ()
                held = {name: file.get_tensor(name) for name in names}
        except (SafetensorError, ValueError) as error:
            log.warning("%s cannot be read (%s); its runs start again from their beginning.", place, error)
            return 0
        if not same:
            kept = place.replace(place.with_suffix(".others"))
            log.warning(
                "%s is of other runs, settings or texts; these start again from their beginning, and it is kept as %s.",
                place,
                kept.name,
            )
            return 0
        with torch.no_grad():
            for name, tensor in (self.optimizer.tensors() | {"summed": self.summed}).items():
                tensor.copy_(held[name])
        self.since = state["since"]
        self.began -= state.get("seconds", 0.0)
        for run, tokens, finite in zip(self.runs, state["tokens"], state["finite"], strict=True):
            run.tokens, run.finite = tokens, finite
        return int(state["step"])

    def _digest(self) -> str:
        """Of the configs and of the texts that they read."""
        trees = [[asdict(replace(run.config, output=run.output.name)), run.data_source.digest()] for run in self.runs]
        return json_digest(trees, 16)

    def save_models(self) -> list[Path]:
        """Models, tokenizers and times, as `train` leaves them; the time of a run is its share of that of all.

        Raises:
            TrainingDiverged: some are not finite; those of the others are written.
        """
        folders, seconds = [], time.monotonic() - self.began
        for number, run in enumerate(self.runs):
            if not run.finite:
                continue
            model = copy.deepcopy(self.model.run(number)).cpu()

            def write(aside: Path, model: Any = model, run: Run = run) -> None:
                model.save_pretrained(aside)
                assert run.data_source.tokenizer is not None
                run.data_source.tokenizer.save_pretrained(aside)

            folders.append(run.output / "model")
            checkpoints.write_whole(folders[-1].with_name(ASIDE), write)
            timings = {"seconds": seconds / len(self.runs), "watching": 0.0, "steps": run.config.steps}
            (run.output / "timings.json").write_text(json.dumps(timings), encoding="utf-8")
        # Only now: a run that has its model counts as finished, and those that lack theirs could not go on without it.
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_name(ASIDE).replace(folder)
        (self.runs[0].output / CHECKPOINT).unlink(missing_ok=True)
        if lost := [run.output.name for run in self.runs if not run.finite]:
            raise TrainingDiverged(f"The loss {NOT_FINITE} in {', '.join(lost)}; the other runs are done.")
        return folders


LAST_SECONDS = 60
"""That a worker goes on after a request to end."""


def _leave_signals(_worker: int) -> None:
    """Ctrl-C of a terminal reaches the workers too, and it is the stack that ends them, after its checkpoint.

    So do requests to end that go to all processes of a job, as Slurm's do; the stack, which would lose its last steps
    with the worker, asks for the end by the same signal if the worker does not end by itself.
    """
    for name in SIGNALS:
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(LAST_SECONDS))


def main() -> None:
    """Train the configs that are named on the command line: what `--engine stacked:cuda` starts."""
    parser = argparse.ArgumentParser(
        prog="python -m dcinterp.train.loop.stacked", description="Train runs that differ in seeds and rates together."
    )
    parser.add_argument("configs", nargs="+", type=Path)
    parser.add_argument("--device", default="", help="cuda, cpu; a GPU where there is one")
    parser.add_argument("--documents", type=Path, help="folder of documents that were made before")
    parser.add_argument("--workers", type=int, default=0, help="processes that make or read documents")
    asked = parser.parse_args()
    said = ""

    def say(done: int, total: int, message: str = "") -> None:
        nonlocal said
        if message != said:
            said = message
            sys.stdout.write(f"{time.strftime('%H:%M:%S')} step {done:,} of {total:,}, {message}\n")
            sys.stdout.flush()

    try:
        configs = [read_config(path) for path in asked.configs]
        with stop_on_signals(say) as progress:
            train_stacked(
                configs, device=asked.device, documents=asked.documents, workers=asked.workers, progress=progress
            )
    except Cancelled as reason:
        sys.stdout.write(f"Stopped at a checkpoint ({reason}).\n")
        sys.exit(130)
    except UserError as error:
        sys.exit(f"dcinterp: {error}")


if __name__ == "__main__":
    main()
