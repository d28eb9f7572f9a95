"""PEFT adapters: a folder with adapter_config.json, or a `PeftModel` in memory, as the model that they make.

The adapter is merged into the weights of its base model, which is read from this machine: an adapter never makes the
network be asked.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

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
    written = read_json_object(path)
    base, revision = written.get("base_model_name_or_path"), written.get("revision")
    revision = revision if isinstance(revision, str) and revision else None
    if not isinstance(base, str) or not base.strip() or "\0" in base:
        raise UserError(
            f"{path} does not say which model the adapter belongs to (base_model_name_or_path is {shown(base)}); write "
            "its folder there."
        )
    if base in shipped_models():
        return SHIPPED / base
    try:
        places = [path_of(base), folder / base]
        found = next((place for place in places if (place / "config.json").is_file()), None)
        found = found or cached_snapshot(base, revision)
    except (UserError, OSError):  # no folder can be called so: too long for the system, or of a user who is not there
        found = None
    if found is None:
        at = f" (revision {shown(revision)})" if revision else ""
        raise UserError(
            f"The adapter in {folder} belongs to the model {shortened(repr(base), 120)}{at}, which is not on this "
            f"machine; load that model first, or write the folder that holds it into {record} as "
            "base_model_name_or_path."
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
    if not weights.exists() and (folder / "adapter_model.bin").exists():
        raise UserError(
            f"{folder} holds its adapter as adapter_model.bin, which may run code when it is read; save it once more "
            "with peft, as adapter_model.safetensors."
        )
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
        if not _has_rank(folder, stored):
            raise UserError(f"The adapter in {folder} does not fit the model in {base}: {reason(error)}.") from error
        try:  # some begin with weights of the base (pissa, olora), or repeat its layers, which takes them whole
            adapted = PeftModel.from_pretrained(_read_base(base, dtype), str(folder))
        except Exception as second:
            raise UserError(f"The adapter in {folder} does not fit the model in {base}: {reason(second)}.") from second
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
    # Embeddings of the base may stand in the file or not, as save_pretrained(save_embedding_layers=...) was told.
    ends = (adapted.get_input_embeddings(), adapted.get_output_embeddings())
    layers = [name for name, module in adapted.named_modules() if any(module is each for each in ends)]
    of_base = {f"{name}{inner}.weight" for name in layers for inner in ("", ".base_layer")}
    for name in sorted(expected.keys() | given.keys()):
        if name in of_base and (name not in expected or name not in given):
            continue
        if expected.get(name) != given.get(name):
            raise UserError(
                f"{stored.path} does not fit {ADAPTER} beside it and the model in {base} ({shortened(name, 80)}); use "
                "files that belong together."
            )


def is_adapted(model: Any) -> bool:
    """Whether an object is a `PeftModel`."""
    return hasattr(model, "merge_and_unload") and hasattr(model, "peft_config")


def _has_rank(folder: Path, stored: SafetensorsFile) -> bool:
    """Whether the file of an adapter has a tensor as large as the rank that its config names, if it names one."""
    rank = read_json_object(folder / ADAPTER).get("r")
    return not isinstance(rank, int) or any(rank in stored.shape(name) for name in stored.names())


def merged_copy(model: Any) -> Any:
    """A copy of a model in memory, with what peft put into it merged into its weights.

    Raises:
        UserError: it cannot be merged, or would then compute something else, as where the adapter is switched off.
    """
    from dcinterp.bridge.processing import share_off
    from dcinterp.bridge.wrapping import probe_of

    whole = copy.deepcopy(model)
    if not is_adapted(whole) and not _adapted_layers(whole):
        return whole
    before = probe_of(whole)
    merged = merge(whole)
    after = probe_of(merged)
    most = MERGED if next(merged.parameters()).dtype == torch.float32 else MERGED_HALF
    if before is not None and after is not None and not share_off(after[1], before[1]) <= most:
        raise UserError(
            "The adapter in this model changes its answers when it is merged into the weights, which looking inside "
            "takes; is it switched off? Give the base model, or the adapter switched on."
        )
    return merged


MERGED, MERGED_HALF = 0.02, 0.2
"""The share of the size of all logits that merging may move them by, in float32 and in half precision, where sums are
rounded once more: tiny models in bfloat16 move by 0.02 to 0.05."""


def _adapted_layers(model: nn.Module) -> dict[str, Any]:
    """The layers of peft in a model, by name; without its import where none can be there."""
    if "peft" not in sys.modules:
        return {}
    from peft.tuners.tuners_utils import BaseTunerLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)}


def _own_weights(model: nn.Module) -> None:
    """Give each layer with an adapter a weight of its own: merged into a shared one it would act in both places."""
    modules = list(model.modules())
    uses = Counter(id(weight) for module in modules for weight in module._parameters.values() if weight is not None)
    for layer in _adapted_layers(model).values():
        base = layer.get_base_layer()
        weight = getattr(base, "weight", None)
        if isinstance(weight, nn.Parameter) and uses[id(weight)] > 1:
            base.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
            if hasattr(model.config, "tie_word_embeddings"):
                model.config.tie_word_embeddings = False


def merge(adapted: Any) -> Any:
    """A model with an adapter as the model that computes the same; it changes the model inside.

    Raises:
        UserError: the adapter adds something that cannot be merged into weights, such as virtual tokens.
    """
    try:
        _own_weights(adapted)
        if is_adapted(adapted):
            return adapted.merge_and_unload()
        if not (layers := _adapted_layers(adapted)):
            raise TypeError("its adapter has no layers")
        for name, layer in layers.items():  # transformers put them in
            layer.merge()
            adapted.set_submodule(name, layer.get_base_layer())
        return adapted
    except Exception as error:  # as above
        configs = getattr(adapted, "peft_config", {}).values()
        kinds = ", ".join(sorted({str(getattr(c.peft_type, "value", c.peft_type)) for c in configs}))
        raise UserError(
            f"An adapter of kind {kinds} cannot be merged into the weights of its model, which looking inside takes; "
            "give one that can, such as LoRA."
        ) from error
