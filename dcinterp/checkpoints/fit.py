"""Whether a config.json and the tensors beside it belong together, before a model of that size is made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dcinterp.support.errors import UserError
from dcinterp.support.text import shown

LAYER = re.compile(r"(?:^|\.)(\d+)\.")
"""The number of a layer in the name of a tensor: the first number there, whatever a layout calls its layers."""

COUNTS = re.compile(r"(?:^|_)(?:layers?|blocks?|depth|experts)$")
"""Fields of a config.json that count things which have tensors of their own."""


def count_layers(names: Iterable[str]) -> int:
    """How many layers these names of tensors belong to."""
    return len({match[1] for name in names if (match := LAYER.search(name))})


def require_layers(path: Path, layers: int, names: Iterable[str]) -> None:
    """Refuse a number of layers that the tensors do not have: a model of a billion layers takes hours to make.

    Args:
        path: of the config.json, for the message.
        layers: how many it asks for.
        names: of the tensors.

    Raises:
        UserError: as said.
    """
    found = count_layers(names)
    if layers > found:
        raise UserError(
            f"The weights in {path.parent} do not fit its config.json (it asks for {layers:,} layers, and they have "
            f"{found}); use files that belong together."
        )


def require_counts(path: Path, fields: Mapping[str, Any], tensors: int) -> None:
    """The same for a config.json of any kind of model, by the names of its fields and a number of tensors.

    Raises:
        UserError: a field asks for more layers or other parts than there are tensors.
    """
    for name, value in fields.items():
        if isinstance(value, int) and COUNTS.search(name) and value > max(tensors, 1024):
            raise UserError(
                f"{name} in {path} is {value:,}, but there are only {tensors:,} tensors in the files beside it; use "
                "files that belong together."
            )
        if isinstance(value, Mapping):  # the model of texts in one of texts and images
            require_counts(path, value, tensors)


OTHER_HEADS = (
    *("ForMaskedLM", "ForPreTraining", "ForNextSentencePrediction", "ForSequenceClassification", "RewardModel"),
    *("ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"),
)
"""Ends of the names of classes whose outputs are no logits of a next token."""


def require_next_token(config: Path | str, fields: Mapping[str, Any]) -> None:
    """Refuse a model whose config.json says that it does not continue texts.

    Raises:
        UserError: it is one of an encoder and a decoder, or has the head of another kind of model.
    """
    named = fields.get("architectures")
    other = [each for each in named if str(each).endswith(OTHER_HEADS)] if isinstance(named, list) else []
    both = fields.get("is_encoder_decoder") is True
    if both or (other and len(other) == len(named or [])):
        kind = f"a {fields.get('model_type')} of an encoder and a decoder" if both else f"a {shown(other[0], 40)}"
        raise UserError(
            f"{config} is that of {kind}; give a causal language model, which continues a text token by token."
        )


def require_one_type(folder: Path, dtypes: Mapping[str, torch.dtype | None]) -> None:
    """Refuse tensors of several types of numbers, or of other ones than floats, as the weights of one model.

    Args:
        folder: of the weights, for the message.
        dtypes: of every tensor, as stored; None for what torch has no plain type for.

    Raises:
        UserError: the message names a tensor of either type.
    """
    first: dict[torch.dtype, str] = {}
    for name, dtype in dtypes.items():
        if dtype is None or not dtype.is_floating_point:
            kind = "another type than plain numbers" if dtype is None else _word(dtype)
            raise UserError(f"{name} in {folder} is of {kind}; convert the checkpoint to float32 or bfloat16 first.")
        first.setdefault(dtype, name)
    if len(first) > 1:
        (one, a), (other, b), *_ = first.items()
        raise UserError(
            f"The weights in {folder} are of several types ({a} is {_word(one)}, {b} is {_word(other)}); say which to "
            "use, with dtype=torch.float32 or --dtype float32 (dcinterp convert has it)."
        )


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def require_finite(model: nn.Module, name: str) -> None:
    """Refuse a model with a weight that is NaN or infinite, whose every reading would be of nothing.

    Args:
        model: of which all parameters are looked at once.
        name: what the message calls it.

    Raises:
        UserError: as said; the message names the first such tensor.
    """
    for of, weight in model.named_parameters():
        number = weight.detach()
        if number.is_meta or not number.is_floating_point():
            continue
        # A sum with such a term is not finite itself; another one may only be too large. One byte has no sum.
        total = number.sum() if number.element_size() > 1 else number.float().sum()
        if not bool(total.isfinite()) and not bool(number.isfinite().all()):
            raise UserError(
                f"The weights of {name} are not all finite numbers (see {of.replace('_original_component.', '')}); use "
                "a checkpoint from before the loss diverged, or copy the files again."
            )
