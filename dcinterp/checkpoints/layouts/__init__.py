"""Foreign checkpoint layouts: one module each, named like the `model_type` in its config.json.

A layout module has `FIELDS` (config.json fields it knows), `read_config`, `to_ours`, `write_config` and `to_theirs`;
its foreign names live nowhere else. With `BY_DEFAULT = False` it says that TransformerLens has a bridge for it too,
which `dcinterp.load` takes unless our decoder is asked for. Put such a module here, and `dcinterp.load`,
`dcinterp convert` and the tests cover it. What several released layouts share is in `dcinterp.checkpoints.released`,
what Llama and its relatives share in `dcinterp.checkpoints.llama_family`.
"""

from __future__ import annotations

import json
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from dcinterp.checkpoints.fit import require_layers, require_one_type
from dcinterp.checkpoints.names import layout_names
from dcinterp.checkpoints.tensor_files import CheckpointTensors
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.support.errors import UserError, nearest, reason, shortened
from dcinterp.support.file_modes import open_like

LAYOUTS = layout_names()
"""`model_type` in the config.json of each; a module of that name reads it."""


def _layout(name: str) -> Any:
    if name not in LAYOUTS:
        raise UserError(f"There is no checkpoint layout {name!r}; {nearest(name, LAYOUTS)}")
    return import_module(f"{__name__}.{name}")


def opens_by_default(kind: str | None) -> bool:
    """Whether `dcinterp.load` opens a folder of this `model_type` in our decoder without being asked to."""
    return kind in LAYOUTS and getattr(_layout(str(kind)), "BY_DEFAULT", True)


def read_foreign(
    folder: Path, fields: dict[str, Any], *, device: Any = None, dtype: torch.dtype | None = None
) -> DCFormerForCausalLM:
    """The model in a folder of a released layout.

    Tensors are read one at a time into a model without memory of its own, so the peak is the model and one tensor.

    Args:
        folder: holds config.json and weights (safetensors, single or sharded, or .bin).
        fields: the content of config.json.
        device, dtype: where to put the weights, and as what; as stored when None.

    Raises:
        UserError: the folder is incomplete or damaged, or its tensors and config do not belong together.
    """
    layout, tensors = _layout(fields["model_type"]), CheckpointTensors(folder)
    unknown = sorted(name for name in fields if name not in layout.FIELDS)
    if unknown:
        warnings.warn(
            f"{folder / 'config.json'}: ignoring unknown fields {shortened(', '.join(unknown), 160)}.", stacklevel=2
        )
    config = read_foreign_config(fields, tensors)
    require_layers(folder / "config.json", config.num_hidden_layers, tensors)
    config.architectures = [DCFormerForCausalLM.__name__]
    with torch.device("meta"):
        model = DCFormerForCausalLM(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    loaded: dict[str, Tensor] = {}
    for name in tensors:
        if name.endswith("_m"):
            continue  # a merged copy that the released code keeps of other tensors
        try:
            parts = list(layout.to_ours(name, tensors.read(name), config))
        except (KeyError, ValueError, IndexError, TypeError, RuntimeError, AssertionError) as error:
            raise UserError(
                f"{folder} has a tensor {shortened(name, 80)}, which a {fields['model_type']} checkpoint of this "
                "config does not; use the config.json that belongs to these weights."
            ) from error
        for ours, tensor in parts:
            if expected.get(ours) != tuple(tensor.shape):
                raise UserError(
                    f"The weights in {folder} do not fit its config.json ({name}: {tuple(tensor.shape)} for "
                    f"{expected.get(ours, 'nothing')}); use files that belong together."
                )
            loaded[ours] = tensor.to(device=device, dtype=dtype)
    if dtype is None:
        weights = [name for name, _ in model.named_parameters()]
        require_one_type(folder, {name: loaded[name].dtype for name in weights if name in loaded})
    if config.tie_word_embeddings and not _tied(loaded):
        config.tie_word_embeddings = False
        with torch.device("meta"):
            model = DCFormerForCausalLM(config)
    missing = sorted(set(expected) - set(loaded))
    if missing:
        raise UserError(
            f"The weights in {folder} do not fit its config.json (nothing gives {missing[0]}); use files that "
            "belong together."
        )
    model.load_state_dict(loaded, assign=True)
    model.tie_weights()
    config.dtype = model.lm_head.weight.dtype
    if (folder / "generation_config.json").is_file():  # where a chat model says at which tokens it ends
        try:
            model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, TypeError) as error:
            warnings.warn(f"{folder / 'generation_config.json'} is ignored ({reason(error)}).", stacklevel=2)
    return model.eval()


def _tied(loaded: dict[str, Tensor]) -> bool:
    """Give the embedding and the unembedding one tensor, whichever of them there is; False where the two differ."""
    ends = ("model.embed_tokens.weight", "lm_head.weight")
    found = [loaded[name] for name in ends if name in loaded]
    if len(found) == 2 and not torch.equal(*found):
        return False  # as transformers, which believes the weights and not the config
    loaded.update(dict.fromkeys(ends, found[0]) if found else {})
    return True


def read_foreign_config(fields: dict[str, Any], tensors: CheckpointTensors) -> DCFormerConfig:
    """Our configuration of a checkpoint in a released layout, from its config.json and the shapes of its tensors.

    Raises:
        UserError: its fields contradict each other, or ask for what our decoder does not compute.
    """
    config: DCFormerConfig
    try:
        config = _layout(fields["model_type"]).read_config(fields, tensors)
    except UserError as error:
        named = str(tensors.folder) in str(error)
        raise error if named else UserError(f"{tensors.folder / 'config.json'}: {error}") from error
    except Exception as error:  # whatever wrong types lead the arithmetic of sizes to
        raise UserError(
            f"The config.json in {tensors.folder} does not describe a model: {reason(error, 160)}."
        ) from error
    return config


def write_foreign(model: DCFormerForCausalLM, folder: Path, layout: str) -> None:
    """Write `model` as a folder of a released layout.

    Raises:
        UserError: there is no such layout, or it has no place for something in the model.
    """
    from huggingface_hub import save_torch_state_dict

    target = _layout(layout)
    fields = target.write_config(model.config)
    folder.mkdir(parents=True, exist_ok=True)
    foreign = dict(target.to_theirs(model.state_dict(), model.config))
    save_torch_state_dict({name: t.contiguous() for name, t in foreign.items()}, folder)
    (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
    open_like(folder / "config.json")
    if model.generation_config is not None:  # where a chat model says at which tokens it ends
        model.generation_config.save_pretrained(folder)


__all__ = [
    "LAYOUTS",
    "CheckpointTensors",
    "DCFormerConfig",
    "opens_by_default",
    "read_foreign",
    "read_foreign_config",
    "write_foreign",
]
