"""Stops a run whose loss or weights are no longer finite, before anything of it is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import TrainConfig
from dcinterp.train.loop.checkpoints import steps_in
from dcinterp.train.loop.run_summary import resume_command

NOT_FINITE = "became NaN or infinite"
"""In every sentence about a run that has diverged."""


class TrainingDiverged(UserError):
    """The loss or the weights of a run became NaN or infinite. Its checkpoints are as they were, and finite."""


class NotFinite(ArithmeticError):
    """What is not finite, and after which step; `describe` makes the sentence of it."""

    def __init__(self, what: str, step: int) -> None:
        super().__init__(f"{what} at step {step:,}")


def has_finite_weights(model: torch.nn.Module) -> bool:
    """Whether every weight is a finite number; of weights that are sharded over devices, the shards of this one."""
    weights = (getattr(parameter, "_local_tensor", parameter).detach() for parameter in model.parameters())
    # One number for each parameter, and one wait for the device.
    largest = [torch.linalg.vector_norm(weight, torch.inf).float() for weight in weights if weight.numel()]
    return bool(torch.stack(largest).isfinite().all())


def describe(problem: NotFinite, config: TrainConfig, output: Path) -> TrainingDiverged:
    """The sentence for a run that has diverged, with the way out."""
    steps = steps_in(output / "checkpoints")
    lower = f"a recipe.learning_rate below {config.recipe.learning_rate:g}"
    if not steps:
        way = f"start again with {lower}; there is no checkpoint to resume from."
    elif 0 < config.recipe.reduction_step < steps[-1]:
        # One reduction is all that a schedule has, and to move it would raise the rate of steps that were made.
        way = f"start in another folder with {lower}; the rate was already reduced once, and one reduction is all."
    else:
        step, factor = steps[-1], config.recipe.reduction_factor / 10
        way = (
            f"resume from the checkpoint of step {step:,}, which is kept, at a tenth of the learning rate: "
            f"{resume_command(output)} --set recipe.reduction_step={step} --set recipe.reduction_factor={factor:g} "
            f"(or start in another folder with {lower})."
        )
    return TrainingDiverged(f"{problem}, so training has stopped and no model is written; {way}")


class FiniteWeights(TrainerCallback):
    """Raises `NotFinite` after a step that left weights that are not finite, before they are measured or saved."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        model: PreTrainedModel = kwargs["model"]
        if not has_finite_weights(model):
            raise NotFinite(f"The weights {NOT_FINITE}", state.global_step)
