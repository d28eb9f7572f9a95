"""The bare model in a folder of ours or of a released layout, and the config.json of any model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from dcinterp.checkpoints.fit import require_layers, require_one_type
from dcinterp.checkpoints.names import OWN, layout_names, refuse_two_models
from dcinterp.checkpoints.tensor_files import CheckpointTensors
from dcinterp.model.build import build_model
from dcinterp.model.config import DCFormerConfig, DCViTConfig
from dcinterp.support.errors import UserError, reason
from dcinterp.support.extensions import Unfit
from dcinterp.support.file_names import is_run, is_trained
from dcinterp.support.json_files import read_json_object
from dcinterp.support.progress import without_bars
from dcinterp.support.text import shown

if TYPE_CHECKING:
    from dcinterp.model.decoder import DCFormerForCausalLM

OURS = (DCFormerConfig.model_type, DCViTConfig.model_type)


def read_model(
    folder: str | Path, *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> DCFormerForCausalLM:
    """The bare model in a folder of ours or of a released layout, without a bridge around it.

    Args:
        folder: as `save_pretrained` or `dcinterp convert` wrote it, or a released checkpoint.
        device, dtype: where to put the weights, and as what; as stored when None.

    Raises:
        UserError: the folder is incomplete or damaged, or its model is of another kind.
    """
    from dcinterp.checkpoints.layouts import read_foreign
    from dcinterp.model.decoder import DCFormerForCausalLM
    from dcinterp.model.vit import DCViTForImageClassification

    folder = Path(folder)
    fields = read_config_file(folder)
    kind = fields.get("model_type")
    if kind in layout_names():
        return read_foreign(folder, fields, device=device, dtype=dtype)
    if kind not in OURS:
        raise UserError(
            f"{folder} holds a model of type {kind!r}, which our decoder does not read; it reads "
            f"{', '.join(sorted({*layout_names(), *OURS}))}. For analyses dcinterp.load opens it, through "
            "TransformerLens."
        )
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder} has a config.json but no safetensors weights; copy model.safetensors into it.")
    images = kind == DCViTConfig.model_type
    config = our_config(folder, fields)
    stored = require_whole(folder, config, dtype)
    try:
        with without_bars():
            loaded: Any = (DCViTForImageClassification if images else DCFormerForCausalLM).from_pretrained(
                folder,
                config=config,
                dtype=dtype or stored,  # "auto" would believe config.json
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except (SafetensorError, OSError, EOFError) as error:
        raise UserError(
            f"The weights in {folder} are damaged ({reason(error)}); copy or download them again."
        ) from error
    model, report = loaded
    wrong = [
        f"{problem.replace('_', ' ')}: {name}" for problem, names in report.items() for name in sorted(map(str, names))
    ]
    if wrong:
        raise UserError(
            f"The weights in {folder} do not fit its config.json ({wrong[0][:120]}); use files that belong together."
        )
    return model.to(device) if device else model


def our_config(folder: Path, fields: dict[str, Any]) -> DCFormerConfig:
    """The config of a model of ours, or of an image classifier of ours, from the fields of its config.json.

    Raises:
        UserError: they describe none; the message names the file.
    """
    kind = DCViTConfig if fields.get("model_type") == DCViTConfig.model_type else DCFormerConfig
    try:
        return kind.from_dict(fields)
    except Unfit:  # a package's fault, and not the file's
        raise
    except Exception as error:  # transformers raises classes of its own for the fields that are its own
        what = str(error).rstrip(".") if isinstance(error, UserError) else reason(error, 160)
        raise UserError(f"{folder / 'config.json'} does not describe a model of this library: {what}.") from error


def require_whole(folder: Path, config: DCFormerConfig, dtype: torch.dtype | None) -> torch.dtype | None:
    """The stored type of the weights of a folder of ours; refuses those that do not fit its config, before reading.

    Raises:
        UserError: a tensor is missing, of another shape, or of another type than the rest.
    """
    tensors = CheckpointTensors(folder)
    require_layers(folder / "config.json", config.num_hidden_layers, tensors)
    with torch.device("meta"):
        model = build_model(config)
    expected = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    weights = [name for name, _ in model.named_parameters()]
    for name, shape in expected.items():
        missing = name not in tensors and not (config.tie_word_embeddings and name == "lm_head.weight")
        if missing or (name in tensors and tensors.shape(name) != shape):
            found = "missing" if missing else f"of shape {tensors.shape(name)}, not {shape}"
            raise UserError(
                f"The weights in {folder} do not fit its config.json ({name} is {found}); use files that belong "
                "together."
            )
    if extra := sorted(name for name in tensors if name not in expected):
        raise UserError(
            f"The weights in {folder} do not fit its config.json (unexpected keys: {extra[0]}); use files that belong "
            "together."
        )
    if dtype is None:
        require_one_type(folder, {name: tensors.dtype(name) for name in weights if name in tensors})
    return next((tensors.dtype(name) for name in weights if name in tensors), None)


def require_own_kind(kind: Any, name: str) -> None:
    """Raise a UserError if our decoder does not read models of this `model_type`; `name` is what the message says."""
    if kind not in (*OURS, *layout_names()):
        raise UserError(
            f"{name} holds a model of type {shown(kind)}, which our decoder does not read; it reads "
            f'{", ".join(layout_names())}. Without {OWN!r} or decoder="own" TransformerLens opens it.'
        )


def _trained_in(folder: Path) -> Path | None:
    """The model of a training run in a folder: the trained one, or its newest checkpoint."""
    if not is_run(folder):
        return None
    from dcinterp.train.loop.checkpoints import PREFIX, steps_in

    if is_trained(folder / "model"):
        return folder / "model"
    steps = steps_in(folder / "checkpoints")
    return folder / "checkpoints" / f"{PREFIX}{steps[-1]}" if steps else None


def read_config_file(folder: Path) -> dict[str, Any]:
    """The config.json of a model folder.

    Raises:
        UserError: it is missing, or does not hold a JSON object; or the folder holds an adapter besides.
    """
    path = folder / "config.json"
    if not (path.exists() or path.is_symlink()):
        if model := _trained_in(folder):
            raise UserError(f"{folder} is the folder of a training run; its model is {model}.")
        raise UserError(
            f"{folder} has no config.json, so it is not a model folder; give a folder that save_pretrained wrote."
        )
    refuse_two_models(folder)
    return read_json_object(path, what="a configuration", way="copy it again from the source of the model")
