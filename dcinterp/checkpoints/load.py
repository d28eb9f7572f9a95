"""`load`: from a name, a folder or a hub id to a bridge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from dcinterp.checkpoints.devices import require_device
from dcinterp.checkpoints.fingerprint import mark_source
from dcinterp.checkpoints.hub import cached_snapshot, download, hub_reason
from dcinterp.checkpoints.names import (
    OWN,
    PLANTED,
    SHIPPED,
    layout_names,
    refuse_file,
    refuse_missing_folder,
    shipped_models,
)
from dcinterp.checkpoints.read import OURS, read_config_file, read_model
from dcinterp.support.errors import UserError, nearest, require_known

if TYPE_CHECKING:
    from dcinterp.bridge import TransformerBridge


Decoder = Literal["auto", "own"]


def load(
    name_or_path: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    decoder: Decoder = "auto",
) -> TransformerBridge:
    """A model, ready to look into.

    Args:
        name_or_path: the name of a shipped model (`shipped_models()`), a local folder, or a hub id such as
            "EleutherAI/pythia-70m", or "planted:share-by-kp,noise=0.01" for a model whose circuit is known. Only a hub
            id touches the network.
        device: where to put the model; the CPU when None.
        dtype: of the weights; as stored when None.
        decoder: "own" opens models of the Llama family (`model_type` llama, mistral, qwen2, qwen3) in our decoder,
            instead of TransformerLens's bridge over that of transformers; the logits are the same. Where only a name
            fits, "own:NAME" says so too.

    Returns:
        A `DCBridge` for our models, TransformerLens's own bridge for any other causal language model. It remembers
        `source`, what it was loaded from, so that results can say how to make them again.

    Raises:
        UserError: there is no such model, or its folder is incomplete or damaged.
    """
    if not str(name_or_path).strip():
        raise UserError("The name of the model is empty; give a shipped model, a folder, or a hub id.")
    require_known("decoder", decoder, get_args(Decoder))
    require_device(device)
    name = str(name_or_path)
    if decoder == "own" and not name.startswith(OWN):
        name = f"{OWN}{name}"
    bridge = _load(name.removeprefix(OWN), device, dtype, own=name.startswith(OWN))
    mark_source(bridge, name, dtype)
    return bridge


def _load(name: str, device: Any, dtype: torch.dtype | None, *, own: bool) -> TransformerBridge:
    if name in shipped_models():
        return _load_ours(SHIPPED / name, name, device, dtype)
    if name.startswith(PLANTED):
        return _load_planted(name.removeprefix(PLANTED), device, dtype)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _load_folder(folder, device, dtype, own=own)
    refuse_file(name)
    refuse_missing_folder(name)
    return _load_hub(name, device, dtype, own=own)


def _load_folder(
    folder: Path, device: Any, dtype: torch.dtype | None, name: str = "", *, own: bool
) -> TransformerBridge:
    from dcinterp.checkpoints.layouts import opens_by_default

    kind = read_config_file(folder).get("model_type")
    if own and kind not in (*OURS, *layout_names()):
        raise UserError(
            f"{folder} holds a model of type {kind!r}, which our decoder does not read; it reads "
            f'{", ".join(layout_names())}. Without {OWN!r} or decoder="own" TransformerLens opens it.'
        )
    if own or kind in OURS or opens_by_default(kind):
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

    model: Any = read_model(folder, device=device, dtype=dtype)
    tokenizer = None
    if (folder / "tokenizer.json").is_file():
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except Exception as error:  # the tokenizers library raises bare exceptions
            raise UserError(f"The tokenizer in {folder} is damaged ({error}); copy its files again.") from error
    if tokenizer is None:
        return wrap(model, tokenizer, name)
    opened = tokenizer.bos_token_id is not None and tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]
    if tokenizer.bos_token is None:
        tokenizer.bos_token = tokenizer.eos_token  # Qwen's has none; this one no text begins with either
    bridge = wrap(model, tokenizer, name)
    bridge.cfg.default_prepend_bos = opened
    return bridge


def _load_planted(line: str, device: Any, dtype: torch.dtype | None) -> TransformerBridge:
    from dcinterp.bridge import wrap
    from dcinterp.planted import read_plant, tokenizer

    planted = read_plant(line)
    return wrap(planted.model.to(device, dtype), tokenizer(), f"planted {planted.circuit}")


def _load_hub(name: str, device: Any, dtype: torch.dtype | None, *, own: bool) -> TransformerBridge:
    from huggingface_hub.errors import EntryNotFoundError

    try:
        folder = cached_snapshot(name) or download(name, own=own)
        if folder is None:
            from dcinterp.bridge import boot

            return boot(name, device=str(device) if device else None, dtype=dtype)
        return _load_folder(folder, device, dtype, name, own=own)
    except UserError:
        raise
    except (OSError, ValueError, EntryNotFoundError) as error:
        hint = "" if "/" in name else f" ({nearest(name, shipped_models()).rstrip('.')})"
        raise UserError(
            f"There is no shipped model {name!r} and no folder of that name{hint}, and the hub did not give it "
            f"either: {hub_reason(error)}"
        ) from error
