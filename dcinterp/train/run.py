"""A training run: `transformers.Trainer` with the paper's recipe, our documents, and accuracy on held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from dcinterp.errors import UserError
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.progress import Progress
from dcinterp.train.callbacks import HeldOutAccuracy, Metrics, Reporter
from dcinterp.train.data import DocumentBatches
from dcinterp.train.recipe import RecipeSection, TrainConfig, write_config
from dcinterp.train.tokenizer import save_tokenizer

CONTEXT = 512


def train(config: TrainConfig, *, resume: bool = False, progress: Progress | None = None) -> Path:
    """Train the model that `config` describes and return the folder it was saved to (`output`/model).

    Beside it, `output` receives config.yaml (every number resolved), metrics.jsonl (loss, tokens and held-out accuracy
    per QK pattern against steps) and the checkpoints.

    Args:
        config: the run.
        resume: continue from the last checkpoint in `output`, or start when there is none.
        progress: called after every step; raising `Cancelled` stops the run, which can be resumed.

    Raises:
        UserError: `output` already holds a run and `resume` is off, or holds a run of another config.
    """
    output = Path(config.output)
    checkpoint = _prepare(output, config, resume)
    if config.recipe.threads:
        torch.set_num_threads(config.recipe.threads)
    tokenizer = save_tokenizer(output / "tokenizer", CONTEXT)
    set_seed(config.recipe.seed)
    model = DCFormerForCausalLM(model_config(config, tokenizer))
    metrics = Metrics(output / "metrics.jsonl")
    trainer = DocumentTrainer(
        model=model,
        args=arguments(config, output),
        train_dataset=DocumentBatches(config.data, tokenizer),
        data_collator=_unwrap,
        callbacks=[HeldOutAccuracy(config.evaluation, tokenizer, metrics), Reporter(metrics, progress)],
    )
    trainer.recipe = config.recipe
    trainer.train(resume_from_checkpoint=checkpoint)
    folder = output / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def model_config(config: TrainConfig, tokenizer: PreTrainedTokenizerFast) -> DCFormerConfig:
    """The model's configuration: preset, the run's changes, and what the tokenizer dictates."""
    fields: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": CONTEXT,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    return DCFormerConfig.preset(config.model.preset, **(fields | config.model.changes))


def arguments(config: TrainConfig, output: Path) -> TrainingArguments:
    """The recipe in the Trainer's words."""
    recipe = config.recipe
    return TrainingArguments(
        output_dir=str(output / "checkpoints"),
        max_steps=config.steps,
        # One item of the dataset is a whole batch.
        per_device_train_batch_size=1,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        gradient_accumulation_steps=recipe.gradient_accumulation,
        gradient_checkpointing=recipe.gradient_checkpointing,
        learning_rate=recipe.learning_rate,
        adam_beta1=recipe.beta1,
        adam_beta2=recipe.beta2,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip,
        seed=recipe.seed,
        bf16=recipe.bf16,
        torch_compile=recipe.compile,
        logging_steps=50,
        logging_nan_inf_filter=False,
        save_steps=config.save_every,
        save_total_limit=2,
        report_to=list(config.report_to) or "none",
        include_num_input_tokens_seen="no",
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
    )


class DocumentTrainer(Trainer):
    """Trainer that counts the tokens it has seen (padding left out) and follows the recipe's learning rates."""

    recipe = RecipeSection()

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        if self.lr_scheduler is None:
            recipe, optimizer = self.recipe, optimizer or self.optimizer
            assert optimizer is not None
            self.lr_scheduler = LambdaLR(optimizer, lambda s: recipe.learning_rate_share(s, num_training_steps))
        return self.lr_scheduler

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        if self.optimizer is None:
            assert isinstance(self.model, torch.nn.Module)
            composed = {id(p) for p in compose_parameters(self.model)}
            decayed = set(self.get_decay_parameter_names(self.model))
            groups: dict[tuple[bool, bool], list[torch.nn.Parameter]] = {}
            for name, parameter in self.model.named_parameters():
                groups.setdefault((id(parameter) in composed, name in decayed), []).append(parameter)
            rate, decay = self.args.learning_rate, self.args.weight_decay
            self.optimizer = torch.optim.AdamW(
                [
                    {
                        "params": parameters,
                        "lr": rate * (self.recipe.compose_learning_rate_fraction if composition else 1.0),
                        "weight_decay": decay if decays else 0.0,
                    }
                    for (composition, decays), parameters in groups.items()
                ],
                lr=rate,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
            )
        return self.optimizer

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        pad = self.model.config.pad_token_id
        self.state.num_input_tokens_seen += int((inputs["input_ids"] != pad).sum())
        return super().training_step(model, inputs, *args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        logs["tokens"] = self.state.num_input_tokens_seen
        super().log(logs, *args, **kwargs)


def compose_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters of every Compose of a model."""
    stages = [m for name, m in model.named_modules() if name.rsplit(".", 1)[-1] in ("pre", "post")]
    return [parameter for stage in stages for parameter in stage.parameters()]


def _prepare(output: Path, config: TrainConfig, resume: bool) -> str | None:
    """The checkpoint to continue from, if any; writes the resolved config."""
    checkpoints = output / "checkpoints"
    last = get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None
    if last and not resume:
        raise UserError(f"{output} already holds a run; continue it with --resume, or choose another output folder.")
    output.mkdir(parents=True, exist_ok=True)
    saved = output / "config.yaml"
    if last and saved.is_file():
        from dcinterp.train.recipe import read_config

        if read_config(saved) != config:
            raise UserError(
                f"The run in {output} was started with other settings (see {saved}); resume it with those, "
                "or choose another output folder."
            )
    write_config(config, saved)
    return last


def _unwrap(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    (batch,) = items
    return batch
