"""`load`: from a name, a folder or a hub id to a bridge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from dcinterp.errors import UserError, nearest
from dcinterp.model.config import DCFormerConfig, DCViTConfig
from dcinterp.progress import without_bars
from dcinterp.provenance import mark_source
from dcinterp.shipped import SHIPPED, refuse_file, shipped_models

if TYPE_CHECKING:
    from dcinterp.bridge import TransformerBridge
    from dcinterp.model.decoder import DCFormerForCausalLM

OURS = (DCFormerConfig.model_type, DCViTConfig.model_type)
LAYOUTS = ("dcformer", "dcpythia")
"""`model_type` in the config.json of our layout and of the released ones (see dcinterp.model.checkpoints)."""

PLANTED = "planted:"
"""What a name begins with that stands for a model built by hand (see dcinterp.planted)."""

WEIGHTS = (".safetensors", ".bin")
"""How the names of files with weights end, the ones that are preferred first."""

HUB_SECONDS = 10.0
"""How long the hub has to answer at all."""


def load(
    name_or_path: str | Path, *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> TransformerBridge:
    """A model, ready to look into.

    Args:
        name_or_path: the name of a shipped model (`shipped_models()`), a local folder, or a hub id such as
            "EleutherAI/pythia-70m", or "planted:lend-by-kp,noise=0.01" for a model whose circuit is known. Only a hub
            id touches the network.
        device: where to put the model; the CPU when None.
        dtype: of the weights; as stored when None.

    Returns:
        A `DCBridge` for our models, TransformerLens's own bridge for any other causal language model. It remembers
        `source`, what it was loaded from, so that results can say how to make them again.

    Raises:
        UserError: there is no such model, or its folder is incomplete or damaged.
    """
    if not str(name_or_path).strip():
        raise UserError("The name of the model is empty; give a shipped model, a folder, or a hub id.")
    require_device(device)
    bridge = _load(str(name_or_path), device, dtype)
    mark_source(bridge, str(name_or_path), dtype)
    return bridge


def _load(name: str, device: Any, dtype: torch.dtype | None) -> TransformerBridge:
    if name in shipped_models():
        return _load_ours(SHIPPED / name, name, device, dtype)
    if name.startswith(PLANTED):
        return _load_planted(name.removeprefix(PLANTED), device, dtype)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _load_folder(folder, device, dtype)
    refuse_file(name)
    refuse_missing_folder(name)
    return _load_hub(name, device, dtype)


def require_device(device: str | torch.device | None) -> None:
    """Raise a UserError if torch does not know the device, or this machine or this build of torch has none."""
    if device is None:
        return
    try:
        kind, number = torch.device(device).type, torch.device(device).index or 0
    except RuntimeError as error:
        raise UserError(f"There is no device {str(device)!r}; choose cpu, cuda or mps.") from error
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}.get(kind)
    if count is not None and number >= count:
        raise UserError(f"Torch finds no device {str(device)!r} on this machine; leave it out to use the CPU.")


def is_path(name: str) -> bool:
    """Whether a name can only be meant as that of a folder or a file."""
    return Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or "\\" in name


def refuse_missing_folder(name: str) -> None:
    """Raise a UserError if `name` can only be meant as a folder, and there is none: what is left may be a hub id."""
    if is_path(name) and not Path(name).expanduser().is_dir():
        raise UserError(f"There is no folder {name}; check the path.")


def _load_folder(folder: Path, device: Any, dtype: torch.dtype | None, name: str = "") -> TransformerBridge:
    kind = read_config_file(folder).get("model_type")
    if kind in OURS or kind in LAYOUTS:
        return _load_ours(folder, name or folder.name, device, dtype)
    if kind is None:
        raise UserError(f"{folder / 'config.json'} has no model_type; copy it again from the source of the model.")
    from dcinterp.bridge import boot

    try:
        bridge = boot(str(folder), device=str(device) if device else None, dtype=dtype)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split(". ")[0].split("\n")[0].rstrip(".")
        raise UserError(
            f"{folder} holds a model of type {kind!r}, which transformers and TransformerLens do not load: {reason}."
        ) from error
    if name:
        bridge.cfg.model_name = name
    return bridge


def _load_ours(folder: Path, name: str, device: Any, dtype: torch.dtype | None) -> TransformerBridge:
    from transformers import PreTrainedTokenizerFast

    from dcinterp.bridge import wrap

    model = read_model(folder, device=device, dtype=dtype)
    tokenizer = None
    if (folder / "tokenizer.json").is_file():
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except Exception as error:  # the tokenizers library raises bare exceptions
            raise UserError(f"The tokenizer in {folder} is damaged ({error}); copy its files again.") from error
    return wrap(model, tokenizer, name)


def _load_planted(line: str, device: Any, dtype: torch.dtype | None) -> TransformerBridge:
    from dcinterp.bridge import wrap
    from dcinterp.planted import read_plant, tokenizer

    planted = read_plant(line)
    return wrap(planted.model.to(device, dtype), tokenizer(), f"planted {planted.circuit}")


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
    from dcinterp.model.checkpoints import read_foreign
    from dcinterp.model.decoder import DCFormerForCausalLM
    from dcinterp.model.vit import DCViTForImageClassification

    folder = Path(folder)
    fields = read_config_file(folder)
    kind = fields.get("model_type")
    if kind in LAYOUTS:
        return read_foreign(folder, fields, device=device, dtype=dtype)
    if kind not in OURS:
        raise UserError(f"{folder} holds a model of type {kind!r}, which is none of ours; use dcinterp.load for it.")
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder} has a config.json but no safetensors weights; copy model.safetensors into it.")
    images = kind == DCViTConfig.model_type
    try:
        config = (DCViTConfig if images else DCFormerConfig).from_dict(fields)
    except (ValueError, TypeError) as error:
        raise UserError(f"{folder / 'config.json'} describes no model of ours: {error}") from error
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
            f"The weights in {folder} do not fit its config.json ({wrong[0]}); use the pair that belongs together."
        )
    return model.to(device) if device else model


def _load_hub(name: str, device: Any, dtype: torch.dtype | None) -> TransformerBridge:
    from huggingface_hub.errors import EntryNotFoundError

    try:
        folder = cached_snapshot(name) or _download(name)
        if folder is None:
            from dcinterp.bridge import boot

            return boot(name, device=str(device) if device else None, dtype=dtype)
        return _load_folder(folder, device, dtype, name)
    except UserError:
        raise
    except (OSError, ValueError, EntryNotFoundError) as error:
        hint = "" if "/" in name else f" ({nearest(name, shipped_models()).rstrip('.')})"
        raise UserError(
            f"There is no shipped model {name!r} and no folder of that name{hint}, and the hub did not give it "
            f"either: {hub_reason(error)}"
        ) from error


def cached_snapshot(name: str) -> Path | None:
    """The folder of a hub id in the cache of the hub's client, if its config.json and all its weights are there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    folder = Path(found).parent if isinstance(found, str) else None
    return folder if folder is not None and any(_whole(folder, ending) for ending in WEIGHTS) else None


def _whole(folder: Path, ending: str) -> bool:
    """Whether the folder holds weights with that ending, and every file of them that its index names."""
    parts = set(folder.glob(f"*{ending}"))
    for index in folder.glob(f"*{ending}.index.json"):
        try:
            parts |= {folder / file for file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
        except (ValueError, KeyError, AttributeError):
            return False
    return bool(parts) and all(part.is_file() for part in parts)


def _download(name: str) -> Path | None:
    """The folder of a hub model of ours or of a released layout, fetched; None for others: transformers gets them."""
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    reach_hub()
    folder = Path(hf_hub_download(name, "config.json")).parent
    if read_config_file(folder).get("model_type") not in (*OURS, *LAYOUTS):
        return None
    files = HfApi().list_repo_files(name)
    safe = any(file.endswith(WEIGHTS[0]) for file in files)
    return Path(snapshot_download(name, allow_patterns=["*.json", f"*{WEIGHTS[0] if safe else WEIGHTS[1]}"]))


def reach_hub() -> None:
    """One quick question before the hub's client asks for minutes: is there a hub at all, and may it be asked?

    Raises:
        OSError: it does not answer within `HUB_SECONDS`, or HF_HUB_OFFLINE is set.
    """
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    if constants.HF_HUB_OFFLINE:
        raise OfflineModeIsEnabled
    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=HUB_SECONDS).close()
    except HTTPError:
        pass  # it answered
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise OSError(f"it cannot be reached ({getattr(reason, 'strerror', None) or reason}).") from error


def hub_reason(error: Exception) -> str:
    """Why the hub's client gave nothing, in a clause that ends with the way out."""
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, LocalEntryNotFoundError, OfflineModeIsEnabled
    from huggingface_hub.errors import RepositoryNotFoundError as NoRepository

    if isinstance(error, GatedRepoError):
        return "its owner gives it on request only; ask on its page, then log in with `hf auth login`."
    if isinstance(error, NoRepository):
        return "it has no model of that name that you may read; check the spelling, or log in with `hf auth login`."
    if isinstance(error, OfflineModeIsEnabled):
        return "it is not in the local cache, and HF_HUB_OFFLINE forbids to ask the network."
    if isinstance(error, LocalEntryNotFoundError):
        return "it is not in the local cache, and the network does not answer."
    if isinstance(error, EntryNotFoundError):
        return "what it has under that name is without a config.json, so it is no model."
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def read_config_file(folder: Path) -> dict[str, Any]:
    """The config.json of a model folder.

    Raises:
        UserError: it is missing or no JSON.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(
            f"{folder} has no config.json, so it is no model folder; give a folder that save_pretrained wrote."
        )
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); copy it again from the source of the model.") from error
    if not isinstance(fields, dict):
        raise UserError(f"{path} does not hold a configuration; copy it again from the source of the model.")
    return fields
