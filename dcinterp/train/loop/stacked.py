"""Several runs that differ in their seeds and rates alone, trained as one model whose parameters have one axis more.

A step of a small model is mostly the start of its operations. Ten runs side by side start as many operations as one, so
on a GPU they take about as long. Each run is the one that `dcinterp.train.loop.run.train` would make on a CPU, to
rounding: the same initial weights, documents, schedule, clipping and decay, in float32.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import pad as pad_tensor
from torch.utils.data import DataLoader, Dataset
from transformers import TrainingArguments, set_seed

from dcinterp.model.build import build_model
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, silent
from dcinterp.train.config.recipe import RecipeSection, TrainConfig, read_config, write_config
from dcinterp.train.control.resume import differences, record
from dcinterp.train.control.run_lock import lock_run
from dcinterp.train.data.batches import NOT_SCORED, Batches, DataSource, is_no_padding
from dcinterp.train.data.data_source import open_data_source, resolve_steps
from dcinterp.train.data.images import ImageSource
from dcinterp.train.data.made_documents import MadeBatches, open_made
from dcinterp.train.loop import checkpoints
from dcinterp.train.loop.callbacks import Metrics
from dcinterp.train.loop.divergence import TrainingDiverged
from dcinterp.train.loop.run import _make, _resolve, evaluation_callback, model_config
from dcinterp.train.loop.trainer import compose_parameters

log = logging.getLogger(__name__)

FREE = ("output", "recipe.seed", "recipe.learning_rate", "data.seed")
"""What runs of one stack may differ in."""


class StackedBatch(NamedTuple):
    """What all runs read in one step.

    ids: of tokens; shorter documents are padded on the right.
    labels: the same, with -100 where nothing is scored.
    items: scored tokens of each run, which its loss is divided by.
    tokens: read by each run, padding left out.
    """

    ids: Int[Tensor, "run batch pos"]
    labels: Int[Tensor, "run batch pos"]
    items: Int[Tensor, " run"]
    tokens: Int[Tensor, " run"]


class StackedBatches(Dataset[StackedBatch]):
    """Item i is the batches of all runs at step i."""

    def __init__(self, batches: Sequence[Batches | MadeBatches], pad: int | None) -> None:
        self.batches, self.pad = batches, pad

    def __len__(self) -> int:
        return len(self.batches[0])

    def __getitem__(self, step: int) -> StackedBatch:
        parts = [each[step] for each in self.batches]
        longest = max(part["input_ids"].shape[1] for part in parts)

        def together(key: str, filler: int) -> Tensor:
            return torch.stack([pad_tensor(p[key], (0, longest - p[key].shape[1]), value=filler) for p in parts])

        return StackedBatch(
            together("input_ids", self.pad or 0),
            together("labels", NOT_SCORED),
            torch.stack([(part["labels"] != NOT_SCORED).sum() for part in parts]),
            torch.stack([is_no_padding(part["input_ids"], self.pad).sum() for part in parts]),
        )


class StackedModel:
    """Models of one shape: a module without numbers of its own, and the parameters of all runs.

    Parameters that are optimised alike lie side by side in one matrix [run, number]; `parameters` are views of these.
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device, recipe: RecipeSection) -> None:
        """Stack models whose parameters have the same names and shapes."""
        first = models[0]
        named = dict(first.named_parameters())
        composed = {id(parameter) for parameter in compose_parameters(first)}
        decayed = set(_decayed_names(first))
        groups: dict[tuple[bool, bool], list[str]] = {}
        for name, parameter in named.items():
            groups.setdefault((id(parameter) in composed, name in decayed), []).append(name)
        of_each = [dict(model.named_parameters()) for model in models]
        self.parameters: dict[str, Tensor] = {}
        self.groups: list[Group] = []
        for (composition, decays), names in groups.items():
            rows = [torch.cat([each[name].detach().flatten() for name in names]) for each in of_each]
            held, start = torch.stack(rows).to(device), 0
            for name in names:
                view = held[:, start : start + named[name].numel()].view(len(models), *named[name].shape)
                self.parameters[name] = view.requires_grad_()
                start += named[name].numel()
            share = recipe.compose_learning_rate_fraction if composition else 1.0
            self.groups.append(Group(tuple(names), held, share, recipe.weight_decay if decays else 0.0))
        self.module: Any = copy.deepcopy(first).to(device)
        self.module.config.use_cache = False  # as the Trainer leaves it
        longest: Any = self.module.config.max_position_embeddings
        self.graphs: Graphs | None = Graphs(longest) if device.type == "cuda" else None

    def losses(self, batch: StackedBatch) -> Float[Tensor, " run"]:
        """The loss of every run on its own documents, in nats."""

        def loss(parameters: dict[str, Tensor], ids: Tensor, labels: Tensor, items: Tensor) -> Tensor:
            given = {"input_ids": ids, "labels": labels, "use_cache": False, "num_items_in_batch": items}
            found: Tensor = functional_call(self.module, parameters, (), given).loss
            return found

        return vmap(loss)(self.parameters, batch.ids, batch.labels, batch.items)

    def gradients(self, batch: StackedBatch) -> tuple[Float[Tensor, " run"], list[Float[Tensor, "run number"]]]:
        """Losses, and their gradients group by group, as the parameters lie."""
        return self._gradients(batch) if self.graphs is None else self.graphs.replay(self._gradients, batch)

    def _gradients(self, batch: StackedBatch) -> tuple[Tensor, list[Tensor]]:
        losses = self.losses(batch)
        found = dict(zip(self.parameters, torch.autograd.grad(losses.sum(), [*self.parameters.values()]), strict=True))
        return losses.detach(), [torch.cat([found[name].flatten(1) for name in g.names], 1) for g in self.groups]

    @torch.no_grad()
    def run(self, number: int) -> Any:
        """The module with the parameters of one run, until this is called for another."""
        for name, parameter in self.module.named_parameters():
            parameter.copy_(self.parameters[name][number])
        return self.module


class Group(NamedTuple):
    """Parameters that are optimised alike.

    names: of the parameters, in the order in which they lie.
    held: their numbers, [run, number].
    share: of the learning rate.
    decay: of the weights.
    """

    names: tuple[str, ...]
    held: Float[Tensor, "run number"]
    share: float
    decay: float


class Graphs:
    """A CUDA graph for every shape of a batch: a step then costs what its arithmetic does, and not its launches."""

    WARM = 3
    EVEN = 16
    """Lengths are padded to a multiple of this, for fewer graphs."""

    def __init__(self, longest: int) -> None:
        """Graphs of documents that may be `longest` tokens long."""
        self.longest = longest
        self.made: dict[torch.Size, tuple[Any, StackedBatch, Any]] = {}
        self.pool: Any = None

    def replay(self, function: Callable[[StackedBatch], Any], batch: StackedBatch) -> Any:
        """What `function` gives for `batch`, valid until the next call."""
        length = batch.ids.shape[2]
        more = min(-length % self.EVEN, self.longest - length)
        batch = batch._replace(
            ids=pad_tensor(batch.ids, (0, more)), labels=pad_tensor(batch.labels, (0, more), value=NOT_SCORED)
        )
        if batch.ids.shape not in self.made:
            self.made[batch.ids.shape] = self._capture(function, batch)
        graph, given, result = self.made[batch.ids.shape]
        for to, new in zip(given, batch, strict=True):
            to.copy_(new)
        graph.replay()
        return result

    def _capture(self, function: Callable[[StackedBatch], Any], batch: StackedBatch) -> tuple[Any, StackedBatch, Any]:
        given = StackedBatch(*(x.clone() for x in batch))
        stream: Any = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self.WARM):
                expected = function(given)[0].clone()
        torch.cuda.current_stream().wait_stream(stream)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            result = function(given)
        self.pool = self.pool or graph.pool()
        graph.replay()
        torch.testing.assert_close(result[0], expected, rtol=1e-4, atol=1e-5, equal_nan=True)
        return graph, given, result


class StackedAdamW:
    """AdamW of `torch.optim` over stacked parameters, with a rate and a clipped gradient for each run."""

    def __init__(self, model: StackedModel, configs: Sequence[TrainConfig]) -> None:
        """Optimise all runs, each by its own config; but for the rates and seeds these must be alike."""
        self.groups, self.steps, self.recipe = model.groups, configs[0].steps, configs[0].recipe
        # A step of AdamW is proportional to its rate: made at the share of the schedule, and then scaled run by run.
        self.optimizer = torch.optim.AdamW(
            [{"params": [group.held], "weight_decay": group.decay} for group in self.groups],
            lr=1.0,
            betas=(self.recipe.beta1, self.recipe.beta2),
            eps=1e-8,
        )
        peaks = [config.recipe.learning_rate for config in configs]
        self.peaks = torch.tensor(peaks, device=self.groups[0].held.device)[:, None]

    def share(self, step: int) -> float:
        """The rate of step `step`, from 0, as a share of the peak."""
        return self.recipe.learning_rate_share(step, self.steps)

    @torch.no_grad()
    def step(self, number: int, gradients: Sequence[Float[Tensor, "run number"]]) -> Float[Tensor, " run"]:
        """Make step `number`, from 0; the norm of every run's gradient before it was clipped."""
        norms = torch.stack([gradient.norm(dim=1) for gradient in gradients]).norm(dim=0)
        shrink = (self.recipe.clip / (norms + 1e-6)).clamp(max=1.0)[:, None]
        before = [group.held.clone() for group in self.groups]
        share = self.share(number)
        for group, gradient, optimised in zip(self.groups, gradients, self.optimizer.param_groups, strict=True):
            group.held.grad = gradient * shrink
            optimised["lr"] = share * group.share
        self.optimizer.step()
        for group, was in zip(self.groups, before, strict=True):
            group.held.copy_(was + self.peaks * (group.held - was))
        return norms


def _decayed_names(module: nn.Module) -> list[str]:
    from transformers import Trainer

    names: list[str] = Trainer.get_decay_parameter_names(None, module)  # type: ignore[arg-type]
    return names


def train_stacked(
    configs: Sequence[TrainConfig],
    *,
    device: str = "",
    documents: Path | None = None,
    workers: int = 0,
    progress: Progress | None = None,
) -> list[Path]:
    """Train all runs together and return the folders of their models, as `train` writes them one by one.

    Nothing is kept until they end: a stack that was stopped starts again.

    Args:
        configs: runs that differ in `FREE` alone.
        device: where to; a GPU where there is one, else the CPU.
        documents: folder of what `make_documents` has made; what is not there is made here.
        workers: processes that make or read the documents; with 0 that is done between the steps.
        progress: called after every step; raising `Cancelled` ends it.

    Raises:
        UserError: the runs differ in something else, ask for what a stack cannot do, or one of their folders holds a
            run.
        TrainingDiverged: the loss of some became NaN or infinite. The models of all others are written.
    """
    require_alike(configs)
    where = torch.device(device or (torch.accelerator.current_accelerator() or "cpu"))
    with ExitStack() as stack:
        for config in configs:
            _make(Path(config.output), resuming=False)
            stack.enter_context(lock_run(Path(config.output)))
        return _train([_resolved(config) for config in configs], where, documents, workers, progress or silent)


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
        "evaluation.watch": first.evaluation.watch,
        "report_to": bool(first.report_to),
        "data.phases.source: images": any(phase.source == "images" for phase in first.data.phases),
    }
    for key, asked in unable.items():
        if asked:
            raise UserError(f"Stacked runs cannot do what {key} asks for; leave it out, or train them one by one.")


def _resolved(config: TrainConfig) -> TrainConfig:
    """With float32 settled, which a stack always uses."""
    return _resolve(replace(config, recipe=replace(config.recipe, bf16=False)))


@dataclass
class _Run:
    """One run of a stack, and what it has measured."""

    config: TrainConfig
    source: DataSource
    metrics: Metrics
    evaluation: Any
    tokens: int = 0
    finite: bool = True


def _train(
    configs: list[TrainConfig], device: torch.device, documents: Path | None, workers: int, progress: Progress
) -> list[Path]:
    if configs[0].recipe.threads:
        torch.set_num_threads(configs[0].recipe.threads)
    torch.backends.cudnn.allow_tf32 = False
    runs: list[_Run] = []
    models: list[nn.Module] = []
    for config in configs:
        source = open_data_source(config, Path(config.output), None)
        config = resolve_steps(config, source)
        assert not isinstance(source, ImageSource)
        metrics = Metrics(Path(config.output) / "metrics.jsonl")
        metrics.rewind(0)
        if runs:  # what is held out is the same for all runs
            evaluation = copy.copy(runs[0].evaluation)
            evaluation.metrics = metrics
        else:
            evaluation = evaluation_callback(config, source, metrics)
        record(
            Path(config.output) / "history.jsonl",
            step=0,
            changes={},
            damaged=[],
            material=source.digest(),
            processes=1,
            torch=torch.__version__,
            transformers=transformers.__version__,
            stacked=len(configs),
            device=str(device),
        )
        write_config(config, Path(config.output) / "config.yaml")
        set_seed(config.recipe.seed)
        models.append(build_model(model_config(config, source)))
        runs.append(_Run(config, source, metrics, evaluation))
    steps = {run.config.steps for run in runs}
    if len(steps) > 1:
        raise UserError("The documents of these runs make unequal numbers of steps; give steps instead of tokens.")
    stacked = StackedModel(models, device, configs[0].recipe)
    del models
    optimizer = StackedAdamW(stacked, [run.config for run in runs])
    began = time.monotonic()
    _loop(runs, stacked, optimizer, documents, workers, progress)
    return _save_all(runs, stacked, time.monotonic() - began)


def _loop(
    runs: list[_Run],
    stacked: StackedModel,
    optimizer: StackedAdamW,
    documents: Path | None,
    workers: int,
    progress: Progress,
) -> None:
    first = runs[0].config
    device = optimizer.peaks.device
    assert runs[0].source.tokenizer is not None
    dataset = StackedBatches(
        [open_made(Batches(run.config.data, run.source), documents) for run in runs],
        runs[0].source.tokenizer.pad_token_id,
    )
    loader = DataLoader(dataset, batch_size=None, shuffle=False, num_workers=workers)
    stacked.module.train()
    summed, steps, since, began = torch.zeros(len(runs), device=device), first.steps, 0, time.monotonic()
    for step, batch in enumerate(loader):
        losses, gradients = stacked.gradients(StackedBatch(*(x.to(device, non_blocking=True) for x in batch)))
        norms = optimizer.step(step, gradients)
        summed += losses
        done = step + 1
        for run, tokens in zip(runs, batch.tokens.tolist(), strict=True):
            run.tokens += tokens
        if done % first.log_every == 0 or done == steps:
            means = (summed / (done - since)).tolist()
            rate = optimizer.share(step) * stacked.groups[0].share
            for run, mean, norm in zip(runs, means, norms.tolist(), strict=True):
                run.finite = run.finite and mean - mean == 0.0 and norm - norm == 0.0
                if run.finite and done % first.log_every == 0:
                    peak = run.config.recipe.learning_rate
                    run.metrics.write(
                        step=done, tokens=run.tokens, loss=mean, learning_rate=peak * rate, gradient_norm=norm
                    )
            finite = [mean for run, mean in zip(runs, means, strict=True) if run.finite]
            message = f"mean loss {sum(finite) / max(1, len(finite)):.3f} of {len(finite)} runs"
            summed.zero_()
            since = done
        if done % first.evaluation.every == 0 or done == steps:
            for number, run in enumerate(runs):
                if run.finite:
                    state: Any = SimpleNamespace(global_step=done, max_steps=steps, num_input_tokens_seen=run.tokens)
                    arguments: TrainingArguments | Any = None
                    run.evaluation.on_step_end(arguments, state, Any, model=stacked.run(number))
        if done % first.log_every == 0 or done == steps:
            left = (time.monotonic() - began) / done * (steps - done)
            progress(done, steps, f"{message}, {timedelta(seconds=round(left))} left")


def _save_all(runs: list[_Run], stacked: StackedModel, seconds: float) -> list[Path]:
    """Models, tokenizers and times, as `train` leaves them; the time is a run's share of that of all."""
    folders, lost = [], []
    for number, run in enumerate(runs):
        output = Path(run.config.output)
        if not run.finite:
            lost.append(output.name)
            continue
        aside, folder = output / checkpoints.STAGING / "model", output / "model"
        copy.deepcopy(stacked.run(number)).cpu().save_pretrained(aside)
        assert run.source.tokenizer is not None
        run.source.tokenizer.save_pretrained(aside)
        checkpoints.force(aside)
        aside.replace(folder)
        aside.parent.rmdir()
        timings = {"seconds": seconds / len(runs), "watching": 0.0, "steps": run.config.steps, "stacked": len(runs)}
        (output / "timings.json").write_text(json.dumps(timings), encoding="utf-8")
        folders.append(folder)
    if lost:
        raise TrainingDiverged(f"The loss became NaN or infinite in {', '.join(lost)}; the other runs are done.")
    return folders


def main() -> None:
    """Train the configs that are named on the command line: what `--engine stacked` starts."""
    parser = argparse.ArgumentParser(prog="python -m dcinterp.train.loop.stacked", description=__doc__)
    parser.add_argument("configs", nargs="+", type=Path)
    parser.add_argument("--device", default="")
    parser.add_argument("--documents", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    asked = parser.parse_args()

    def say(done: int, total: int, message: str = "") -> None:
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} step {done:,} of {total:,}, {message}\n")
        sys.stdout.flush()

    try:
        train_stacked(
            [read_config(path) for path in asked.configs],
            device=asked.device,
            documents=asked.documents,
            workers=asked.workers,
            progress=say,
        )
    except UserError as error:
        sys.exit(f"dcinterp: {error}")


if __name__ == "__main__":
    main()
