"""The bare model in a folder of ours or of a released layout, and the config.json of any model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from dcinterp.checkpoints.names import layout_names
from dcinterp.model.config import DCFormerConfig, DCViTConfig
from dcinterp.support.errors import UserError
from dcinterp.support.progress import without_bars

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
            f"{folder} holds a model of type {kind!r}, which is not one of this library; load it with dcinterp.load."
        )
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder} has a config.json but no safetensors weights; copy model.safetensors into it.")
    images = kind == DCViTConfig.model_type
    try:
        config = (DCViTConfig if images else DCFormerConfig).from_dict(fields)
    except (ValueError, TypeError) as error:
        raise UserError(f"{folder / 'config.json'} does not describe a model of this library: {error}") from error
    try:
        with without_bars():
            loaded: Any = (DCViTForImageClassification if images else DCFormerForCausalLM).from_pretrained(
                folder,
                config=config,
                dtype=dtype or "auto",
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except (SafetensorError, OSError, EOFError) as error:
        raise UserError(f"The weights in {folder} are damaged ({error}); copy or download them again.") from error
    model, report = loaded
    wrong = [
        f"{problem.replace('_', ' ')}: {name}" for problem, names in report.items() for name in sorted(map(str, names))
    ]
    if wrong:
        raise UserError(
            f"The weights in {folder} do not fit its config.json ({wrong[0]}); use files that belong together."
        )
    return model.to(device) if device else model


def read_config_file(folder: Path) -> dict[str, Any]:
    """The config.json of a model folder.

    Raises:
        UserError: it is missing or no JSON.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(
            f"{folder} has no config.json, so it is not a model folder; give a folder that save_pretrained wrote."
        )
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); copy it again from the source of the model.") from error
    if not isinstance(fields, dict):
        raise UserError(f"{path} does not hold a configuration; copy it again from the source of the model.")
    return fields
