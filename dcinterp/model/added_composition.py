"""Composition added to a model that was trained without it, and the small folder that holds nothing else.

    composed = add_composition(base, {"compose": "dynamic", "compose_rank": 2})     # the same logits
    AddedComposition.of(base, "my-llama", composed.config).write(composed, folder)  # what was added, and to what

The two files of the folder are `composition.json` (the base model's name, a hash of its weights, the fields of the
config that say how heads are composed) and `composition.safetensors` (the parameters of every Compose, by their names
in the composed model).
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dcinterp.model.compose.base import Composer, Place
from dcinterp.model.compose.registry import COMPOSERS, NOT_COMPOSED, composer_class
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.support.errors import UserError, reason, require_known
from dcinterp.support.file_modes import open_like
from dcinterp.support.file_names import COMPOSITION
from dcinterp.support.json_files import read_field, read_json_object, require_plain_file

RECORD, TENSORS = COMPOSITION, "composition.safetensors"
BASE, FINGERPRINT, FIELDS = "base_model_name_or_path", "base_fingerprint", "fields"
"""Keys of the record."""

_ADDED = re.compile(r"\.self_attn\.(pre|post)\.")


def is_added(name: str) -> bool:
    """Whether the tensor of this name in a model's state dict belongs to a Compose."""
    return _ADDED.search(name) is not None


@dataclass(frozen=True)
class AddedComposition:
    """What was added to which model.

    base: a shipped model, a folder or a hub id; fingerprint: `weights_fingerprint` of it; fields: those of
    `DCFormerConfig` that say how heads are composed.
    """

    base: str
    fingerprint: str
    fields: dict[str, Any]

    @classmethod
    def of(cls, base: DCFormerForCausalLM, name: str, composed: DCFormerConfig) -> Self:
        """The record of what makes a model of the config `composed` of `base`."""
        fields = {key: value for key, value in composed.to_dict().items() if key.startswith("compose")}
        return cls(name, weights_fingerprint(base), fields)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The record in a folder.

        Raises:
            UserError: it is damaged.
        """
        path = folder / RECORD
        way = "copy it again from where it was written"
        found = read_json_object(path, what="the record of a composition", way=way)
        kinds = ((BASE, str), (FINGERPRINT, str), (FIELDS, dict))
        return cls(*(read_field(found, name, kind, path, way=way) for name, kind in kinds))

    def write(self, model: DCFormerForCausalLM, folder: str | Path, state: Mapping[str, Tensor] | None = None) -> None:
        """Write the two files into `folder`.

        Args:
            model: the base model with its composition.
            folder: made if it is not there.
            state: the state dict of the model, where it is not that of `model` (sharded weights, gathered).
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: t for name, t in (state or model.state_dict()).items() if is_added(name)}
        save_file({name: t.detach().float().cpu().contiguous() for name, t in tensors.items()}, folder / TENSORS)
        record = {BASE: self.base, FINGERPRINT: self.fingerprint, FIELDS: self.fields}
        (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        open_like(folder / RECORD)

    def require(self, base: DCFormerForCausalLM, folder: Path) -> None:
        """Raises:
        UserError: `base` is not the model that this was added to.
        """
        if weights_fingerprint(base) != self.fingerprint:
            raise UserError(
                f"The composition in {folder} belongs to other weights than those of {self.base!r} here; write the "
                f"folder of the model that it was made for into {RECORD} as {BASE}."
            )


def add_composition(base: DCFormerForCausalLM, fields: Mapping[str, Any], *, seed: int = 0) -> DCFormerForCausalLM:
    """The same model with composed heads that change nothing yet: its logits are those of `base`, to rounding.

    Every Compose starts at the identity exactly, where the paper's initialisation is only near it (see
    `Composer.start_at_identity`).

    Args:
        base: a model without composition; the new one uses its tensors, not copies of them.
        fields: of `DCFormerConfig`, `compose` and others that begin so.
        seed: of the first values of what is not at zero.

    Raises:
        UserError: `base` composes already, a field is not one of composition, or such a composer cannot start at the
            identity; the sentence names it.
    """
    config = composed_config(base.config, fields)
    composed = _on_meta(config)
    composed.load_state_dict(base.state_dict(), strict=False, assign=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer, block in enumerate(composed.model.layers):
            for stage in config.stages:
                composer = composer_class(config.compose)(config).place(Place(layer, stage))
                for module in reversed([*composer.modules()]):  # parts first: a composer knows their values better
                    composed._init_weights(module)
                composer.start_at_identity()
                setattr(block.self_attn, stage, composer)
    composed.tie_weights()
    return _like(composed, base)


def put_composition(
    base: DCFormerForCausalLM, added: AddedComposition, folder: Path, dtype: torch.dtype | None = None
) -> DCFormerForCausalLM:
    """The model that `base` and the composition in `folder` make; it uses the tensors of `base`.

    dtype: of the model, that of `base` when None. The composition is kept in float32, and rounded to it once.

    Raises:
        UserError: the files are damaged or do not belong together, or `base` is another model than they were made for.
    """
    added.require(base, folder)  # the fingerprint is of the numbers as they are stored
    if dtype is not None:
        base = base.to(dtype=dtype)  # type: ignore[call-arg]
    try:
        config = composed_config(base.config, added.fields)
    except UserError as error:
        raise UserError(f"{folder / RECORD}: {error}") from error
    composed = _on_meta(config)
    composed.load_state_dict(base.state_dict(), strict=False, assign=True)
    composed.tie_weights()
    load_composition(composed, folder, assign=True)
    return _like(composed, base)


def load_composition(model: DCFormerForCausalLM, folder: Path, *, assign: bool = False) -> None:
    """Give a composed model the tensors in `folder`; with `assign`, in the place of those that it has.

    Raises:
        UserError: the file is missing or damaged, or holds other tensors than the composition of this model.
    """
    try:
        require_plain_file(folder / TENSORS)
        tensors = load_file(folder / TENSORS)
    except (SafetensorError, OSError, EOFError) as error:
        raise UserError(f"{folder / TENSORS} is damaged ({reason(error)}); copy it again.") from error
    expected = {name: t.shape for name, t in model.state_dict().items() if is_added(name)}
    given = {name: t.shape for name, t in tensors.items()}
    for name in sorted(expected.keys() | given.keys()):
        if expected.get(name) != given.get(name):
            raise UserError(
                f"{TENSORS} and {RECORD} in {folder} do not belong together ({name}); use files that were written "
                "together."
            )
    model.load_state_dict(tensors, strict=False, assign=assign)


def composed_config(base: DCFormerConfig, fields: Mapping[str, Any]) -> DCFormerConfig:
    """The configuration of `base` with composed heads.

    Raises:
        UserError: it composes already, or the fields are not valid.
    """
    if base.stages:
        raise UserError(
            f"This model composes its heads already, with compose={base.compose!r}; composition is added to a model "
            "whose heads are not composed."
        )
    known = [name for name in DCFormerConfig.__dataclass_fields__ if name.startswith("compose")]
    for name in fields:
        require_known("field of composition", name, known)
    require_identity(str(fields.get("compose", "dynamic")))
    try:
        config = type(base).from_dict(base.to_dict() | {"compose": "dynamic"} | dict(fields))
    except UserError:
        raise
    except (ValueError, TypeError) as error:
        raise UserError(str(error)) from error
    if not config.stages:
        raise UserError("compose_stages is empty, so nothing would be added; choose from 'pre' and 'post'.")
    return config


def require_identity(name: str) -> None:
    """Refuse a way of composing that cannot be added to a trained model without changing it.

    Raises:
        UserError: there is no such composer, or it says no `start_at_identity`; the message names those that do.
    """
    if name == NOT_COMPOSED or composer_class(name).start_at_identity is Composer.start_at_identity:
        known = COMPOSERS.that_load().items()
        able = [each for each, kind in known if kind.start_at_identity is not Composer.start_at_identity]
        raise UserError(
            f"compose={name!r} cannot start at the identity, so the model would not compute the same with it; choose "
            f"one of {', '.join(able)}."
        )


def weights_fingerprint(model: DCFormerForCausalLM) -> str:
    """32 hex digits of the names, shapes and numbers of all weights but those of composition.

    Numbers count as float32, so that a copy of a bfloat16 model in float32 is the same model; the layout of the files
    does not count. Cost: reads every weight once.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, weight in sorted(model.named_parameters(), key=lambda pair: pair[0]):
        if not is_added(name):
            digest.update(f"{name} {tuple(weight.shape)}".encode())
            digest.update(weight.detach().cpu().float().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _on_meta(config: DCFormerConfig) -> DCFormerForCausalLM:
    with torch.device("meta"):
        return DCFormerForCausalLM(config)


def _like(composed: Any, base: DCFormerForCausalLM) -> DCFormerForCausalLM:
    """On the device of `base`, in its type and its mode, with its way to generate and to compute attention."""
    composed.generation_config = copy.deepcopy(base.generation_config)
    composed.set_attn_implementation(base.config._attn_implementation)
    return composed.to(device=base.device, dtype=base.dtype).train(base.training)  # type: ignore[no-any-return]
