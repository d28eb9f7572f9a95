"""The model that a run starts from, where it is not a new one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from dcinterp.model.added_composition import AddedComposition, is_added
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import TrainConfig


@dataclass(frozen=True)
class Start:
    """A trained model, in float32.

    tokenizer: its own; None where it has none. added: where the folder holds a composition alone, which one; a run
    that trains only this saves only this.
    """

    model: DCFormerForCausalLM
    tokenizer: PreTrainedTokenizerFast | None
    added: AddedComposition | None


OpenStart = Callable[[str], Start]
"""Opens what `model.start` names (`dcinterp.checkpoints.composition.open_start`; training itself knows no layouts)."""


def open_model(config: TrainConfig, open_start: OpenStart | None) -> Start | None:
    """What a run starts from; None for a new model.

    Raises:
        UserError: the keys of `model` contradict each other, or the model has nothing to train.
    """
    section = config.model
    if not section.start:
        if section.train != "all":
            raise UserError(
                f"model.train is {section.train!r}, but a new model has no weights that could stay as they are; give "
                "model.start (--from), the folder of the model to start from."
            )
        return None
    if section.changes:
        raise UserError(
            f"model.changes has {next(iter(section.changes))!r}, but model.start names a model that is there; leave "
            "one of them out."
        )
    assert open_start is not None, "whoever trains from a folder says how it is opened"
    start = open_start(section.start)
    if section.train == "composition":
        freeze_all_but_composition(start.model, section.start)
    return start


def freeze_all_but_composition(model: DCFormerForCausalLM, name: str) -> None:
    """Leave gradients to the parameters of every Compose alone.

    Raises:
        UserError: the model has none.
    """
    if not model.config.stages:
        raise UserError(
            f"{name} has no composition to train; add one with: dcinterp compose {name} --output FOLDER. Or train all "
            "of it (--train all)."
        )
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(is_added(parameter_name))
