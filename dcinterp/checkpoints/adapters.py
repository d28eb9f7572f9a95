"""PEFT adapters: a folder with adapter_config.json, or a `PeftModel` in memory, as the model that they make.

The adapter is merged into the weights of its base model, which is read from this machine: an adapter never makes the
network be asked.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from dcinterp.checkpoints.hub import cached_snapshot
from dcinterp.checkpoints.names import ADAPTER, SHIPPED, shipped_models
from dcinterp.checkpoints.read import OURS, read_config_file, read_model
from dcinterp.support.errors import UserError
from dcinterp.support.progress import without_bars


def base_of(folder: Path, record: str = ADAPTER) -> Path:
    """The folder of the model that an adapter belongs to; `record` is the file that says which.

    Raises:
        UserError: the adapter's config is damaged, names none, or names one that is not on this machine.
    """
    path = folder / record
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        base = fields["base_model_name_or_path"]
        if not isinstance(base, str) or not base.strip():
            raise ValueError("base_model_name_or_path is empty")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} does not say which model the adapter belongs to ({error}); write its folder there as "
            "base_model_name_or_path."
        ) from error
    if base in shipped_models():
        return SHIPPED / base
    places = [Path(base).expanduser(), folder / base]
    found = next((place for place in places if (place / "config.json").is_file()), None) or cached_snapshot(base)
    if found is None:
        raise UserError(
            f"The adapter in {folder} belongs to the model {base!r}, which is not on this machine; load that model "
            f"first, or write the folder that holds it into {record} as base_model_name_or_path."
        )
    return found


def read_adapted(folder: Path, device: Any, dtype: torch.dtype | None) -> Any:
    """The base model of an adapter with the adapter merged into its weights.

    Raises:
        UserError: peft is missing, the base model is not there, or the adapter does not fit it.
    """
    base = base_of(folder)
    if find_spec("peft") is None:
        raise UserError(f"Reading the adapter in {folder} takes the package peft; install it with: pip install peft")
    if not (folder / "adapter_model.safetensors").is_file():
        raise UserError(f"{folder} has an {ADAPTER} but no adapter_model.safetensors; copy that file into it.")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any
    if read_config_file(base).get("model_type") in OURS:
        model = read_model(base, dtype=dtype)
    else:
        try:
            with without_bars():
                model = AutoModelForCausalLM.from_pretrained(
                    base, dtype=dtype or torch.float32, attn_implementation="eager", local_files_only=True
                )
        except (OSError, ValueError) as error:
            raise UserError(f"The base model of the adapter, in {base}, does not load: {_line(error)}") from error
    kind, name = type(model), model.config.name_or_path
    try:
        adapted = PeftModel.from_pretrained(model, str(folder))
    except Exception as error:  # peft raises what its many kinds of adapters raise
        raise UserError(f"The adapter in {folder} does not fit the model in {base}: {_line(error)}") from error
    merged = merge(adapted)
    assert isinstance(merged, kind)
    merged.config.name_or_path = name
    return merged.to(device) if device else merged


def is_adapted(model: Any) -> bool:
    """Whether an object is a `PeftModel`."""
    return hasattr(model, "merge_and_unload") and hasattr(model, "peft_config")


def merge(adapted: Any) -> Any:
    """A `PeftModel` as the model that computes the same; it changes the model inside.

    Raises:
        UserError: the adapter adds something that cannot be merged into weights, such as virtual tokens.
    """
    try:
        return adapted.merge_and_unload()
    except Exception as error:  # as above
        kinds = ", ".join(
            sorted({str(getattr(c.peft_type, "value", c.peft_type)) for c in adapted.peft_config.values()})
        )
        raise UserError(
            f"An adapter of kind {kinds} cannot be merged into the weights of its model, which looking inside takes; "
            "give one that can, such as LoRA."
        ) from error


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text[:200].rstrip('.')}."
