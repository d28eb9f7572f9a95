"""A training run: `transformers.Trainer` with the paper's recipe, our documents, and accuracy on held-out rows."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import PrinterCallback, TrainerCallback, set_seed
from transformers.integrations import is_tensorboard_available, is_wandb_available
from transformers.utils import is_torch_bf16_gpu_available

from dcinterp.model.added_composition import AddedComposition
from dcinterp.model.build import build_model
from dcinterp.model.config import DCFormerConfig
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.file_names import is_trained
from dcinterp.support.memory import keep_freed_memory
from dcinterp.support.progress import Progress, silent, without_bars
from dcinterp.support.source_commit import source_commit
from dcinterp.support.whole_files import whole
from dcinterp.train.config.recipe import (
    TrainConfig,
    long_warmup,
    read_config,
    require_cooldown,
    require_counts,
    require_ranges,
    require_read_keys,
    write_config,
)
from dcinterp.train.control.resume import check_resumable, differences, record
from dcinterp.train.control.run_lock import FILE, lock_run
from dcinterp.train.data.batches import Batches, DataSource, TaskSource, is_no_padding
from dcinterp.train.data.data_source import open_data_source, require_fitting, resolve_steps, row_padding
from dcinterp.train.data.images import ImageSource
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.text import TextSource, require_text
from dcinterp.train.data.tokenizer import write_tokenizer
from dcinterp.train.loop import checkpoints
from dcinterp.train.loop.callbacks import HeldOutAccuracy, HeldOutImages, HeldOutPuzzle, HeldOutText, Metrics, Reporter
from dcinterp.train.loop.divergence import FiniteWeights, NotFinite, describe
from dcinterp.train.loop.mechanism_log import MechanismLog
from dcinterp.train.loop.metrics_file import data_digest, is_measured, read_records
from dcinterp.train.loop.run_summary import RunSummary, resume_command, time_step
from dcinterp.train.loop.start import OpenStart, open_model
from dcinterp.train.loop.trainer import DocumentTrainer, arguments, missing_processes, on_cpu, processes

log = logging.getLogger(__name__)

WRITES = ("config.yaml", "metrics.jsonl", "timings.json", "watch", "checkpoints", "model")
"""What a run writes from its history on."""
TOKENIZER = "tokenizer"
"""What it writes before that."""


def train(
    config: TrainConfig,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    begin: Callable[[RunSummary], None] | None = None,
    open_start: OpenStart | None = None,
) -> Path:
    """Train the model that `config` describes and return the folder it was saved to (`output`/model).

    Beside it, `output` receives config.yaml (every number resolved), history.jsonl (every start and what it changed),
    metrics.jsonl (loss, tokens and held-out measurements against steps), watch/ (spectra and branch strengths at every
    checkpoint), timings.json and the checkpoints. Started by a launcher such as `torchrun`, every process calls this
    function.

    Args:
        config: the run.
        resume: continue from the last good checkpoint in `output`, or start when there is none.
        progress: called after every step; raising `Cancelled` stops the run at a checkpoint of that step, from which it
            can be resumed (of several processes: at the last one).
        begin: called before the first step with a summary of the run.
        open_start: opens the model that `config.model.start` names.

    Raises:
        UserError: `output` already holds a run and `resume` is off, is being trained in, or holds a run that was
            trained under other settings; the data are missing; or the disk is full.
        TrainingDiverged: the loss or the weights became NaN or infinite. No model is written, and every checkpoint that
            is there is finite.
        Cancelled: `progress` raised it.
    """
    output = Path(config.output)
    fresh = not output.exists()
    if warning := missing_processes():
        log.warning(warning)
    try:
        require_ranges(config.recipe)
        if never_at_its_peak := long_warmup(config):
            log.warning(never_at_its_peak)
        config = resolve(config)
        if not resume and any(phase.source == "text" for phase in config.data.phases):
            require_text(config.data.text)  # before anything is made
        if not any(phase.tokens for phase in config.data.phases):  # else it is known when the data are open
            require_valid_start(config, output)
        make_folder(output, resume)
        lock = lock_run(output) if processes().is_main_process else nullcontext(silent)
        with lock as publish, keep_freed_memory():
            try:
                return _train(config, output, publish, progress or silent, begin, open_start)
            except UserError:
                if fresh and processes().is_main_process:
                    _remove_bare(output)  # while nobody else can be in it
                raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if error.filename is None or not str(error.filename).startswith(str(output)):
                raise
            raise UserError(
                f"{error.filename} cannot be used ({error.strerror}); remove it, or choose another output folder."
            ) from error
        raise checkpoints.write_error(f"The run in {output}", error, output / "checkpoints") from error


def _train(
    config: TrainConfig,
    output: Path,
    publish: Progress,
    progress: Progress,
    begin: Callable[[RunSummary], None] | None,
    open_start: OpenStart | None,
) -> Path:
    start = open_model(config, open_start)
    publish(0, config.steps, "reading the documents")
    main = processes()
    with _kept(output / TOKENIZER) if main.is_main_process else nullcontext():
        with main.main_process_first():
            data_source = open_data_source(config, output, start.tokenizer if start else None)
        config = resolve_steps(config, data_source)
        require_valid_start(config, output)
        planned = start.model.config if start else model_config(config, data_source)
        require_fitting(config, data_source, planned)
        publish(0, config.steps, "preparing what is held out")
        metrics = Metrics(output / "metrics.jsonl", writes=main.is_main_process)
        held_out = evaluation_callback(config, data_source, metrics, planned)
        # Both may refuse the run, and `_prepare` writes what a refused one must not change.
        batches = Batches(config.data, data_source, parts=main.num_processes * config.recipe.gradient_accumulation)
        added = start.added if start and config.model.train == "composition" else None
        with main.main_process_first():
            checkpoint = _prepare(output, config, data_source, added) if main.is_main_process else _last(output)
    if config.recipe.threads:
        torch.set_num_threads(config.recipe.threads)
    set_seed(config.recipe.seed)
    model = start.model if start else build_model(planned)
    mechanism = MechanismLog(output / "watch", _probe(batches, data_source), writes=main.is_main_process)
    reporter = Reporter(metrics, join(publish, progress))
    trainer = DocumentTrainer(
        recipe=config.recipe,
        keep_checkpoints=config.keep_checkpoints,
        saved_tokenizer=data_source.tokenizer if added is None else None,  # an adapter's is that of its base
        added=added,
        on_loss=reporter.add_loss,
        loss_is_mean=isinstance(data_source, ImageSource),
        padding=None if isinstance(data_source, ImageSource) else row_padding(data_source),
        model=model,
        args=arguments(config, output),
        train_dataset=batches,
        data_collator=_unwrap,
        callbacks=[
            FiniteWeights(),
            held_out,
            *([mechanism] if config.evaluation.watch else []),
            reporter,
        ],
    )
    trainer.remove_callback(PrinterCallback)
    if trainer.is_fsdp_enabled and config.evaluation.watch:
        log.warning("Weights are sharded over devices, so nothing is recorded in %s.", mechanism.folder)
        trainer.remove_callback(mechanism)
    if checkpoint is not None:
        trainer.add_callback(_RestoreRunning(trainer, checkpoint))
    if begin is not None:
        step = int(checkpoint.rsplit("-", 1)[1]) if checkpoint is not None else 0
        batch = batches[min(step, config.steps - 1) * batches.parts]
        seconds = partial(time_step, model, batch, config.recipe.gradient_accumulation)
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        begin(RunSummary(config, model.num_parameters(), step, seconds, trained))
    trainer.began = time.monotonic()
    with without_bars():
        ends = checkpoint is not None and int(checkpoint.rsplit("-", 1)[1]) >= config.steps
        unmeasured = ends and not is_measured(metrics.path, config.steps)
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
            if unmeasured:  # a run that was shortened to its checkpoint has no step left that would measure
                held_out.on_step_end(trainer.args, trainer.state, trainer.control, model=trainer.model)
        except NotFinite as problem:
            raise describe(problem, config, output) from problem
        if reporter.cancelled is not None:
            raise reporter.cancelled
        timings = {"seconds": trainer.seconds, "watching": mechanism.seconds, "steps": trainer.state.global_step}
        folder = output / "model"
        _save(trainer, folder, output / "timings.json", timings)
    return folder


def model_config(config: TrainConfig, data_source: DataSource) -> DCFormerConfig:
    """The model's configuration: preset, the run's changes, and what the data dictate."""
    fields = data_source.model_fields()
    words, changed = fields.get("vocab_size", 0), config.model.changes.get("vocab_size")
    if isinstance(changed, int) and changed < words:
        raise UserError(
            f"model.changes.vocab_size is {changed}, but the tokenizer of this data has {words:,} tokens; leave it out."
        )
    classes, changed = fields.get("num_labels", 0), config.model.changes.get("num_labels")
    if isinstance(changed, int) and changed < classes:
        raise UserError(
            f"model.changes.num_labels is {changed}, but the images are of {classes:,} classes; leave it out."
        )
    return DCFormerConfig.preset(config.model.preset, **(fields | config.model.changes))


HeldOut = HeldOutAccuracy | HeldOutImages | HeldOutPuzzle | HeldOutText


def evaluation_callback(config: TrainConfig, data_source: DataSource, metrics: Metrics, model: Any) -> HeldOut:
    """What measures a run on documents that it is not trained on.

    model: the model's config; one without a context takes any length.

    Raises:
        UserError: documents of the tasks are longer than the model's context, or so many examples are not to be had.
    """
    if isinstance(data_source, TextSource):
        return HeldOutText(config.evaluation, data_source, metrics)
    if isinstance(data_source, ImageSource):
        return HeldOutImages(config.evaluation, data_source, metrics)
    if isinstance(data_source, PuzzleSource):
        return HeldOutPuzzle(config.evaluation, data_source, metrics)
    assert isinstance(data_source, TaskSource)
    held_out = HeldOutAccuracy(config.evaluation, data_source, metrics)
    context = getattr(model, "max_position_embeddings", None)
    for examples, longest in held_out.longest.items():
        if context is not None and longest > context:
            raise UserError(
                f"Held-out rows of {examples} examples are up to {longest} tokens, but the model reads {context}: give "
                "smaller numbers for evaluation.examples, or a larger model.changes.max_position_embeddings."
            )
    return held_out


class _RestoreRunning(TrainerCallback):
    """Gives the trainer back the losses since the last line of the metrics, and what this config asks for anew."""

    def __init__(self, trainer: DocumentTrainer, checkpoint: str) -> None:
        self.trainer, self.checkpoint = trainer, checkpoint

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.restore_running(self.checkpoint)
        # A checkpoint brings the numbers that it was written under.
        state.save_steps, state.logging_steps = args.save_steps, args.logging_steps


def resolve(config: TrainConfig) -> TrainConfig:
    """The config with everything settled that depends on the machine, and refused where it cannot run."""
    bf16 = config.recipe.bf16
    if bf16 is None:
        bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    if bf16 and not on_cpu() and not is_torch_bf16_gpu_available():
        raise UserError(
            f"recipe.bf16 is true, but the device here ({torch.accelerator.current_accelerator()}) has no bfloat16; "
            "leave recipe.bf16 out."
        )
    reporters = {"tensorboard": is_tensorboard_available, "wandb": is_wandb_available}
    for name in config.report_to:
        if name not in reporters:
            raise UserError(f"report_to names {name!r}; {nearest(name, reporters)}")
        if not reporters[name]():
            raise UserError(f"report_to names {name}, which is not installed; install it with: pip install {name}")
    require_counts(config)
    return replace(config, recipe=replace(config.recipe, bf16=bf16))


def require_valid_start(config: TrainConfig, output: Path) -> None:
    """Refuse settings that make no sense together in a run that begins; one that was begun before goes on as it was."""
    if not checkpoints.steps_in(output / "checkpoints"):
        require_cooldown(config)
        require_read_keys(config)


def make_folder(output: Path, resuming: bool) -> None:
    """The folder of the run, unless another one is in it, or files that a run would write over."""
    main = processes()
    if main.is_main_process:
        steps = checkpoints.steps_in(output / "checkpoints")
        if steps and not resuming:
            raise UserError(
                f"{output} already holds a run, at step {steps[-1]:,}; go on with: {resume_command(output)}. Or choose "
                "another output folder with --output."
            )
        if not steps and is_trained(output / "model"):
            raise UserError(f"{output} already holds a trained model; choose another output folder with --output.")
        if not steps and (others := _others(output)):
            raise UserError(
                f"{output} holds other files, such as {others[0]}, which a run could overwrite; choose "
                "another output folder with --output."
            )
        make_output(output)
    main.wait_for_everyone()


def make_output(output: Path) -> None:
    """The folder, unless something is in its way."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise UserError(f"{output} cannot be made ({error.strerror}); choose another output folder.") from error


def _remove_bare(output: Path) -> None:
    """Take away the folder of a run that was refused before it wrote anything."""
    with suppress(OSError):
        if [each.name for each in output.iterdir()] == [FILE]:
            (output / FILE).unlink()
        output.rmdir()  # which fails where anything is in it


def _others(output: Path) -> list[str]:
    """Files of a folder in which no run was started that a run would write over."""
    if not output.is_dir() or os.path.lexists(output / "history.jsonl"):
        return []
    begun = os.path.lexists(output / FILE)  # of a run that was killed before its history
    writes = WRITES if begun else (*WRITES, TOKENIZER)
    return [name for name in writes if os.path.lexists(output / name)]


@contextmanager
def _kept(folder: Path) -> Iterator[None]:
    """A folder as it was before, if the block fails: what refuses a run must not change it."""
    with TemporaryDirectory() as aside:
        before = Path(aside) / folder.name
        if folder.is_dir():
            shutil.copytree(folder, before)
        try:
            yield
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            if before.is_dir():
                shutil.copytree(before, folder)
            raise


def join(*callbacks: Progress) -> Progress:
    """A callback that calls all of these."""

    def call_all(done: int, total: int, message: str = "") -> None:
        for callback in callbacks:
            callback(done, total, message)

    return call_all


def _prepare(output: Path, config: TrainConfig, data_source: DataSource, added: AddedComposition | None) -> str | None:
    """The checkpoint to continue from, if any; writes the resolved config and a line of history."""
    found, damaged = checkpoints.last_good(output / "checkpoints")
    step = int(found.name.removeprefix(checkpoints.PREFIX)) if found is not None else 0
    saved, history = output / "config.yaml", output / "history.jsonl"
    changes: dict[str, list[Any]] = {}
    if found is not None and not saved.is_file():
        raise UserError(
            f"{saved} is missing, so it is not known how the checkpoints beside it were made; put it back, or choose "
            "another output folder."
        )
    if found is not None:
        before = resolve(read_config(saved))
        check_resumable(before, config, step, output)
        changes = differences(before, config)
        if _digest(history) not in ("", data_source.digest()):
            raise UserError(
                f"The text or images that the run in {output} reads have changed since it began; give it what it was "
                "started with, or choose another output folder."
            )
        if added is not None and AddedComposition.read(found).fingerprint != added.fingerprint:
            raise UserError(
                f"The model {added.base} that the run in {output} adds composition to has changed since it began; give "
                "it what it was started with, or choose another output folder."
            )
    for sentence in damaged:
        log.warning(
            "%s The run %s.", sentence, f"goes on from step {step}" if step else "starts again from its beginning"
        )
    for key, (old, new) in changes.items():
        log.warning("%s was %r and is %r from step %d on.", key, old, new, step)
    record(
        history,
        step=step,
        changes=changes,
        damaged=damaged,
        material=data_source.digest(),  # the key of the file's format, older than the name
        processes=processes().num_processes,
        torch=torch.__version__,
        transformers=transformers.__version__,
        device=str(processes().device),
        commit=source_commit(),
    )
    write_config(config, saved)
    return str(found) if found is not None else None


def _last(output: Path) -> str | None:
    """What `_prepare` has settled on, for the other processes."""
    steps = checkpoints.steps_in(output / "checkpoints")
    return str(output / "checkpoints" / f"{checkpoints.PREFIX}{steps[-1]}") if steps else None


def _digest(history: Path) -> str:
    """The hash of the data that the run read when it was last started."""
    starts, wrong = read_records(history)
    for number in wrong:
        log.warning("Line %d of %s is not the start of a run and is ignored.", number, history)
    return data_digest(starts)


def _probe(batches: Batches, data_source: DataSource, rows: int = 8) -> dict[str, torch.Tensor]:
    """A few rows of the first batch, as long as the shortest of them, to measure the composition on."""
    batch = data_source.batch(batches.draw(0))
    if "pixel_values" in batch:
        return {"pixel_values": batch["pixel_values"][:rows]}
    ids = batch["input_ids"][:rows]
    return {"input_ids": ids[:, : int(is_no_padding(ids, row_padding(data_source)).sum(1).min())]}


def _save(
    trainer: DocumentTrainer,
    folder: Path,
    timings_file: Path,
    timings: dict[str, float],
) -> None:
    """The trained model with its tokenizer, or the trained composition, whole or not at all."""
    accelerator = trainer.accelerator
    weights = accelerator.get_state_dict(trainer.model) if trainer.is_fsdp_enabled else None
    if accelerator.is_main_process:
        bare = accelerator.unwrap_model(trainer.model, keep_torch_compile=False)

        def write(aside: Path) -> None:
            if trainer.added is None:
                bare.config.use_cache = True  # which is put out while it trains
                bare.save_pretrained(aside, state_dict=weights)
            else:
                trainer.added.write(bare, aside, weights)
            if trainer.saved_tokenizer is not None:
                write_tokenizer(trainer.saved_tokenizer, aside)

        def write_model() -> None:
            checkpoints.write_whole(folder, write)

        def write_timings() -> None:
            with whole(timings_file) as aside:
                aside.write_text(json.dumps(timings), encoding="utf-8")

        # What makes the run count as finished comes last: its model, or where a shorter one is there, how long it is.
        lengthened = is_trained(folder)
        for step in (write_model, write_timings) if lengthened else (write_timings, write_model):
            step()
    accelerator.wait_for_everyone()


def _unwrap(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    (batch,) = items
    return batch
