"""`transformers.Trainer` with the recipe's learning rates, exact counts, and checkpoints that are whole or absent."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments

from dcinterp.model.added_composition import AddedComposition, load_composition
from dcinterp.train.config.recipe import RecipeSection, TrainConfig
from dcinterp.train.control.signals import PARENT
from dcinterp.train.data.batches import is_no_padding
from dcinterp.train.data.tokenizer import write_tokenizer
from dcinterp.train.loop import checkpoints
from dcinterp.train.loop.divergence import NOT_FINITE, NotFinite

EPSILON = 1e-8
"""Of AdamW."""
RUNNING = "running.json"
"""In a checkpoint: what the Trainer keeps in memory between two lines of the metrics."""


def arguments(config: TrainConfig, output: Path) -> TrainingArguments:
    """The recipe in the Trainer's words."""
    recipe = config.recipe
    # The name is deprecated, but the new one is younger than the oldest transformers that we allow.
    checkpointing: dict[str, Any] = {"gradient_checkpointing": True} if recipe.gradient_checkpointing else {}
    made = TrainingArguments(
        output_dir=str(output / "checkpoints"),
        max_steps=config.steps,
        # One item of the dataset is a whole part of a batch.
        per_device_train_batch_size=1,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        gradient_accumulation_steps=recipe.gradient_accumulation,
        **checkpointing,
        learning_rate=recipe.learning_rate,
        adam_beta1=recipe.beta1,
        adam_beta2=recipe.beta2,
        adam_epsilon=EPSILON,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip,
        seed=recipe.seed,
        bf16=bool(recipe.bf16),
        use_cpu=on_cpu(),
        torch_compile=recipe.compile,
        logging_steps=config.log_every,
        logging_nan_inf_filter=False,
        save_steps=config.save_every,
        report_to=list(config.report_to) or "none",
        include_num_input_tokens_seen="no",
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        # Every parameter of a model takes part in every step.
        ddp_find_unused_parameters=False,
    )
    # Without a launcher one process uses one device: an item is one batch, not one for each device.
    made._n_gpu = min(made.n_gpu, 1)
    return made


def on_cpu() -> bool:
    """Whether a run uses the CPU, which transformers and accelerate must be told.

    Otherwise accelerate ignores that `torchrun` started several processes, and transformers refuses bfloat16. Macs
    train on it too: Metal has no float64, which measures of a run are taken in, and nothing here was tried on it.
    """
    asked = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    if asked or not torch.accelerator.is_available():
        return True
    return getattr(torch.accelerator.current_accelerator(), "type", "") == "mps"


def processes() -> PartialState:
    """This process among those that a launcher (`torchrun`, `accelerate launch`) started."""
    return PartialState(cpu=True) if on_cpu() else PartialState()


def missing_processes() -> str:
    """A warning when a launcher was asked for several processes and fewer train together; else nothing."""
    running = processes().num_processes
    asked, tasks = (os.environ.get(name, "") for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"))
    # `accelerate launch --cpu` starts one process whatever it is asked for. Of what it was asked for it passes on only
    # an address, which it sets for several processes.
    if "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ and not asked:
        wanted = "Several processes"
    elif asked.isdigit() and int(asked) > running:
        wanted = f"{asked} processes"
    elif not asked and PARENT not in os.environ and tasks.isdigit() and int(tasks) > running:
        # `srun` starts its tasks without a word of each other. Those of a sweep are runs of their own.
        wanted = f"{tasks} tasks"
    else:
        return ""
    return (
        f"{wanted} were asked for, and {running} trains here; on CPUs start them with: "
        "torchrun --nproc_per_node N -m dcinterp train CONFIG.yaml"
    )


class DocumentTrainer(Trainer):
    """Trainer that counts the tokens it has seen (padding left out) and follows the recipe's learning rates."""

    def __init__(
        self,
        *,
        recipe: RecipeSection,
        keep_checkpoints: int,
        saved_tokenizer: PreTrainedTokenizerFast | None,
        on_loss: Callable[[float], None],
        padding: int | None = None,
        loss_is_mean: bool = False,
        added: AddedComposition | None = None,
        **arguments: Any,
    ) -> None:
        """Prepare a run.

        Args:
            recipe: learning rates of the schedule and of the composition.
            keep_checkpoints: newest checkpoints that are kept.
            saved_tokenizer: saved with every checkpoint, so that each is a model that `dcinterp.load` reads.
            on_loss: called with the loss of every part of a batch.
            padding: the token that fills up rows, and is not counted; none where nothing does.
            loss_is_mean: the model's loss is a mean over the rows of a batch (images), not a sum over tokens that the
                Trainer divides.
            added: what checkpoints hold, where it is a composition alone and not the whole model.
            arguments: those of `transformers.Trainer`.
        """
        self.recipe, self.keep_checkpoints, self.saved_tokenizer = recipe, keep_checkpoints, saved_tokenizer
        self.on_loss, self.added, self.loss_is_mean = on_loss, added, loss_is_mean
        self.padding = padding
        self._staging: Path | None = None
        self.began, self.earlier = time.monotonic(), 0.0
        super().__init__(**arguments)
        if loss_is_mean:
            self.model_accepts_loss_kwargs = False

    @property
    def seconds(self) -> float:
        """What training took up to now, with what the steps before the checkpoint took that it goes on from."""
        return self.earlier + time.monotonic() - self.began

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        if self.lr_scheduler is None:
            recipe, optimizer = self.recipe, optimizer or self.optimizer
            assert optimizer is not None
            self.lr_scheduler = LambdaLR(optimizer, lambda s: recipe.learning_rate_share(s, num_training_steps))
        return self.lr_scheduler

    def create_optimizer(self, model: Any = None, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        if self.optimizer is None:
            model = self.model if model is None else model
            named, rate = dict(model.named_parameters()), self.args.learning_rate
            self.optimizer = torch.optim.AdamW(
                [
                    {"params": [named[name] for name in names], "lr": rate * share, "weight_decay": decay}
                    for names, share, decay in optimised_groups(model, self.recipe)
                ],
                lr=rate,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
            )
        return self.optimizer

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """As in transformers, but tokens are counted.

        Raises:
            NotFinite: the loss is NaN or infinite, in this process or another; the weights are as they were.
        """
        if (ids := inputs.get("input_ids")) is None:
            seen = torch.tensor(len(inputs["pixel_values"]), device=self.args.device)
        else:
            seen = is_no_padding(ids, self.padding).sum()
        loss = super().training_step(model, inputs, *args, **kwargs)
        counts = torch.stack([seen.to(self.args.device), (~loss.isfinite()).long()])
        if self.args.world_size > 1:
            # All processes stop at the same step.
            counts = self.accelerator.reduce(counts)
        tokens, not_finite = counts.tolist()
        if not_finite:
            raise NotFinite(f"The loss {NOT_FINITE}", self.state.global_step + 1)
        self.state.num_input_tokens_seen += tokens
        self.on_loss(float(loss))
        return loss

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if not self.loss_is_mean:
            return loss
        # Parts of a batch that is not divided evenly count by their rows: transformers takes their plain mean.
        batches: Any = self.train_dataset
        rows = batches.draw(self.state.global_step).phase.batch_size
        return loss * (len(inputs["pixel_values"]) * batches.parts / rows)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        logs["tokens"] = self.state.num_input_tokens_seen
        super().log(logs, *args, **kwargs)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._staging) if self._staging is not None else super()._get_output_dir(trial)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if self.added is None:
            super()._save(output_dir, state_dict)
        elif self.args.should_save:
            bare: Any = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
            self.added.write(bare, output_dir or str(self.args.output_dir), state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.added is None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            bare: Any = self.accelerator.unwrap_model(model or self.model, keep_torch_compile=False)
            load_composition(bare, Path(resume_from_checkpoint))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """As in transformers, but aside; what is whole is then renamed into place.

        Raises:
            UserError: the disk did not take it; the checkpoints before it are as they were.
        """
        folder = Path(str(self.args.output_dir))
        step = self.state.global_step
        self._staging = folder / checkpoints.STAGING
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                staged = self._staging / f"{checkpoints.PREFIX}{step}"
                running = {
                    "loss": float(self._tr_loss),
                    "logged": self._globalstep_last_logged,
                    "seconds": self.seconds,
                }
                (staged / RUNNING).write_text(json.dumps(running), encoding="utf-8")
                if self.saved_tokenizer is not None:
                    write_tokenizer(self.saved_tokenizer, staged)
                checkpoints.seal(staged)
                checkpoints.publish(staged, folder, self.keep_checkpoints)
            self.accelerator.wait_for_everyone()
        except (OSError, RuntimeError, SafetensorError) as error:
            raise checkpoints.write_error(f"The checkpoint of step {step}", error, folder) from error
        finally:
            self._staging = None
            shutil.rmtree(folder / checkpoints.STAGING, ignore_errors=True)

    def restore_running(self, checkpoint: str) -> None:
        """Set what a checkpoint of the Trainer does not restore: the losses since the last line of the metrics, and the
        learning rate of the next step, which may follow another schedule than the checkpoint was written under."""
        path = Path(checkpoint) / RUNNING
        if path.is_file():
            running = json.loads(path.read_text(encoding="utf-8"))
            self._tr_loss = torch.tensor(running["loss"], device=self.args.device)
            self._globalstep_last_logged = running["logged"]
            self.earlier = running.get("seconds", 0.0)  # version 0.1 did not keep it
        scheduler: Any = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        assert self.optimizer is not None
        # The peaks of this config, in the order in which `create_optimizer` made the groups.
        shares = [share for _, share, _ in optimised_groups(self.model, self.recipe)]  # type: ignore[arg-type]
        scheduler.base_lrs = [self.args.learning_rate * share for share in shares]
        for group, rate, schedule in zip(
            self.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
        ):
            group["initial_lr"], group["lr"] = rate, rate * schedule(scheduler.last_epoch)
        scheduler._last_lr = [group["lr"] for group in self.optimizer.param_groups]  # what the metrics tell


def compose_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters of every Compose of a model."""
    stages = [m for name, m in model.named_modules() if name.rsplit(".", 1)[-1] in ("pre", "post")]
    return [parameter for stage in stages for parameter in stage.parameters()]


def optimised_groups(model: torch.nn.Module, recipe: RecipeSection) -> list[tuple[tuple[str, ...], float, float]]:
    """What is optimised alike: names of parameters, their share of the learning rate, and their weight decay."""
    composed = {id(p) for p in compose_parameters(model)}
    # Of a Trainer, of whom it uses nothing.
    decayed = set(Trainer.get_decay_parameter_names(None, model))  # type: ignore[arg-type]
    groups: dict[tuple[bool, bool], list[str]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:  # what stays as it is needs no moments, and no decay may reach it
            groups.setdefault((id(parameter) in composed, name in decayed), []).append(name)
    return [
        (
            tuple(names),
            recipe.compose_learning_rate_fraction if composition else 1.0,
            recipe.weight_decay if decays else 0.0,
        )
        for (composition, decays), names in groups.items()
    ]
