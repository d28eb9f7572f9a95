"""PEFT adapters: a folder with adapter_config.json, or a `PeftModel` in memory, as the model that they make.

The adapter is merged into the weights of its base model, which is read from this machine: an adapter never makes the
network be asked.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from dcinterp.checkpoints.fit import require_counts
from dcinterp.checkpoints.hub import cached_snapshot
from dcinterp.checkpoints.names import ADAPTER, SHIPPED, shipped_models
from dcinterp.checkpoints.read import OURS, read_config_file, read_model
from dcinterp.checkpoints.safetensors_file import SafetensorsFile
from dcinterp.checkpoints.tensor_files import count_tensors
from dcinterp.support.errors import UserError, reason, shortened
from dcinterp.support.json_files import read_json_object
from dcinterp.support.paths import path_of
from dcinterp.support.pretrained import read_pretrained
from dcinterp.support.progress import without_bars
from dcinterp.support.text import shown


def base_of(folder: Path, record: str = ADAPTER) -> Path:
    """The folder of the model that an adapter belongs to; `record` is the file that says which.

    Raises:
        UserError: the adapter's config is damaged, names none, or names one that is not on this machine.
    """
    path = folder / record
    base = read_json_object(path).get("base_model_name_or_path")
    if not isinstance(base, str) or not base.strip() or "\0" in base:
        raise UserError(
            f"{path} does not say which model the adapter belongs to (base_model_name_or_path is {shown(base)}); write "
            "its folder there."
        )
    if base in shipped_models():
        return SHIPPED / base
    try:
        places = [path_of(base), folder / base]
        found = next((place for place in places if (place / "config.json").is_file()), None) or cached_snapshot(base)
    except (UserError, OSError):  # no folder can be called so: too long for the system, or of a user who is not there
        found = None
    if found is None:
        raise UserError(
            f"The adapter in {folder} belongs to the model {shortened(repr(base), 120)}, which is not on this machine; "
            f"load that model first, or write the folder that holds it into {record} as base_model_name_or_path."
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
    weights = folder / "adapter_model.safetensors"
    if not weights.exists():
        raise UserError(f"{folder} has an {ADAPTER} but no adapter_model.safetensors; copy that file into it.")
    stored = SafetensorsFile(weights)
    from peft import PeftModel

    model = _read_base(base, dtype)
    kind, name = type(model), model.config.name_or_path
    try:
        # On no device at first, so that a rank which its tensors do not have takes no memory.
        adapted = PeftModel.from_pretrained(model, str(folder), low_cpu_mem_usage=True)
    except Exception as error:  # peft raises what its many kinds of adapters raise
        raise UserError(f"The adapter in {folder} does not fit the model in {base}: {reason(error)}.") from error
    _require_all(adapted, stored, base)
    try:
        merged = merge(adapted)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    assert isinstance(merged, kind)
    merged.config.name_or_path = name
    return merged.to(device) if device else merged


def _read_base(base: Path, dtype: torch.dtype | None) -> Any:
    from transformers import AutoModelForCausalLM

    fields = read_config_file(base)
    if fields.get("model_type") in OURS:
        return read_model(base, dtype=dtype)
    require_counts(base / "config.json", fields, count_tensors(base))
    try:
        with without_bars():
            return read_pretrained(
                AutoModelForCausalLM,
                base,
                dtype=dtype or torch.float32,
                attn_implementation="eager",
                local_files_only=True,
            )
    except (UserError, MemoryError):
        raise
    except Exception as error:  # as above
        raise UserError(f"The base model of the adapter, in {base}, does not load: {reason(error)}.") from error


def _require_all(adapted: Any, stored: SafetensorsFile, base: Path) -> None:
    """Refuse an adapter of which peft found only a part in its file, or only a part a place for: it warns, and goes on.

    Raises:
        UserError: the message names a tensor.
    """
    from peft import get_peft_model_state_dict

    expected = {name: tuple(t.shape) for name, t in get_peft_model_state_dict(adapted).items()}
    given = {name: stored.shape(name) for name in stored.names()}
    for name in sorted(expected.keys() | given.keys()):
        if expected.get(name) != given.get(name):
            raise UserError(
                f"{stored.path} does not fit {ADAPTER} beside it and the model in {base} ({shortened(name, 80)}); use "
                "files that belong together."
            )


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
