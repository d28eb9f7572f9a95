"""`compose`: composition put into a trained model; and the folders that hold such a composition and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerFast

from dcinterp.checkpoints.adapters import base_of
from dcinterp.checkpoints.devices import number_type
from dcinterp.checkpoints.hub import cached_snapshot
from dcinterp.checkpoints.names import (
    OWN,
    SHIPPED,
    is_composition,
    refuse_file,
    refuse_missing_folder,
    refuse_others,
    shipped_models,
)
from dcinterp.checkpoints.read import read_model
from dcinterp.checkpoints.tokenizer_files import copy_tokenizer, has_tokenizer, read_tokenizer
from dcinterp.model.added_composition import AddedComposition, add_composition, put_composition
from dcinterp.model.config import Stage
from dcinterp.support.errors import UserError
from dcinterp.support.file_names import COMPOSITION
from dcinterp.support.paths import path_of
from dcinterp.support.progress import without_bars
from dcinterp.support.whole_files import whole
from dcinterp.train.loop.start import Start

if TYPE_CHECKING:
    from dcinterp.model.decoder import DCFormerForCausalLM


def compose(
    model: str | Path,
    output: str | Path,
    *,
    compose: str | None = None,
    rank: int | None = None,
    groups: int | None = None,
    stages: Sequence[Stage] | None = None,
    changes: Mapping[str, Any] | None = None,
    seed: int | None = None,
    merge: bool = False,
    dtype: torch.dtype | str | None = None,
) -> Path:
    """Add composition to a trained model, so that its logits do not change.

    Every Compose starts at the identity exactly; `dcinterp train --from OUTPUT --train composition` then learns it. In
    DCMHA the second projection (w_2) and the gates are zero at the start, so that the first projections (`down`, and
    the half of `up` that makes w_1) get a gradient only after the first step.

    Args:
        model: a shipped model, a folder of ours or of the Llama family (`model_type` llama, mistral, qwen2, qwen3), or
            the hub id of such a model; its heads are not composed. With `merge`, the folder of a composition.
        output: the folder to write; new or empty. It receives what was added (`composition.safetensors`), and the name
            of the model and a hash of its weights (`composition.json`).
        compose: the way of composing, of those that can start at the identity; "dynamic" (DCMHA) when None.
        rank: R, the rank of the dynamic projections; 2 when None.
        groups: heads are composed within so many groups; 1 when None.
        stages: "pre" (scores), "post" (weights) or both; both when None.
        changes: further fields of `DCFormerConfig` that begin with `compose_`.
        seed: of the first values of what is not zero; 0 when None.
        merge: write `model`, a composition and the model that it was added to, as one ordinary folder instead.
        dtype: with `merge`, of the weights to write, or its name ("float32", in which compositions are kept); that of
            the model that it was added to when None.

    Returns:
        `output`, which `dcinterp.load` opens.

    Raises:
        UserError: the model composes its heads already, is not of a layout that our decoder reads, or cannot be found;
            or the composer cannot start at the identity.

    Cost: reads all weights once; memory for one copy of them.
    """
    output = path_of(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} holds other files; give another folder, or empty it first.")
    fields = {"compose": compose, "compose_rank": rank, "compose_groups": groups, "compose_stages": stages}
    given = {name: value for name, value in fields.items() if value is not None}
    if twice := [name for name in given if name in (changes or {})]:
        raise UserError(f"{twice[0]} is given twice, as an option of its own and as a further field; give it once.")
    given |= dict(changes or {})
    if merge:
        if given or seed is not None:
            raise UserError("A composition is merged as it is; leave the other options out, or leave out --merge.")
        with whole(output) as place:
            _merge(path_of(model), place, number_type(dtype))
        return output
    if dtype is not None:
        raise UserError("dtype is of merge=True alone: a composition is kept in float32.")
    name = str(model).removeprefix(OWN)
    folder = _base_folder(name)
    base = _read_language_model(folder, None)
    composed = add_composition(base, given, seed=seed or 0)
    with whole(output) as place:
        AddedComposition.of(base, _lasting_name(name), composed.config).write(composed, place)
    return output


def read_composed(folder: Path, device: Any = None, dtype: torch.dtype | None = None) -> DCFormerForCausalLM:
    """The model that a composition and its base make.

    Raises:
        UserError: the base is not on this machine or has other weights, or the files are damaged.
    """
    added = AddedComposition.read(folder)
    # As it is stored: the fingerprint is of these numbers, and the rounded ones of another type would differ.
    base = _read_language_model(base_of(folder, COMPOSITION), None)
    model: Any = put_composition(base, added, folder, dtype)
    return model.to(device=device)  # type: ignore[no-any-return]


def open_start(name: str) -> Start:
    """The model that a run starts from, in float32: a composition with its base, or any model that our decoder reads.

    Raises:
        UserError: there is no such model, or our decoder does not read it.
    """
    name = name.removeprefix(OWN)
    folder = path_of(name)
    places: tuple[Path, ...]
    if is_composition(folder):
        model, added = read_composed(folder, dtype=torch.float32), AddedComposition.read(folder)
        places = (folder, base_of(folder, COMPOSITION))
    else:
        folder = _base_folder(name)
        model, added, places = _read_language_model(folder, torch.float32), None, (folder,)
    words = next((read_tokenizer(place) for place in places if has_tokenizer(place)), None)
    # Training cuts texts into tokens by the library of the fast ones.
    return Start(model, words if isinstance(words, PreTrainedTokenizerFast) else None, added)


def _merge(folder: Path, output: Path, dtype: torch.dtype | None) -> None:
    if not is_composition(folder):
        raise UserError(
            f"{folder} does not hold a composition ({COMPOSITION}) to merge; give what dcinterp compose wrote, or the "
            "model folder of a run that trained it."
        )
    model, base = read_composed(folder, dtype=dtype), base_of(folder, COMPOSITION)
    with without_bars():
        model.save_pretrained(output)
    copy_tokenizer(next((each for each in (folder, base) if has_tokenizer(each)), base), output)


def _base_folder(name: str) -> Path:
    """The folder of a model, from its name; of a model of the hub, the one in the cache of the hub's client."""
    if name in shipped_models():
        return SHIPPED / name
    folder = path_of(name)
    refuse_others(folder)
    if folder.is_dir():
        return folder
    refuse_file(name)
    refuse_missing_folder(name)
    found = cached_snapshot(name)
    if found is None:
        raise UserError(
            f"There is no shipped model {name!r}, no folder of that name, and none in the local cache of the hub; load "
            "it once with dcinterp.load, or give its folder."
        )
    return found


def _lasting_name(name: str) -> str:
    """What a record calls a model: a shipped model or a hub id by its name, a folder by its whole path."""
    folder = path_of(name)
    return str(folder.resolve()) if name not in shipped_models() and folder.is_dir() else name


def _read_language_model(folder: Path, dtype: torch.dtype | None) -> DCFormerForCausalLM:
    from dcinterp.model.decoder import DCFormerForCausalLM

    model = read_model(folder, dtype=dtype)
    if not isinstance(model, DCFormerForCausalLM):
        raise UserError(f"{folder} holds an image classifier; give a language model.")
    return model.eval()
