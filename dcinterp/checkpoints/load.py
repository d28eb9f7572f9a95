"""`load`: from a name, a folder, a file or a hub id to a bridge."""

from __future__ import annotations

import copy
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import nn

from dcinterp.checkpoints.adapters import base_of, merged_copy, read_adapted
from dcinterp.checkpoints.composition import read_composed
from dcinterp.checkpoints.devices import number_type, require_device
from dcinterp.checkpoints.fingerprint import mark_source
from dcinterp.checkpoints.fit import require_counts, require_finite, require_next_token
from dcinterp.checkpoints.gguf_file import read_gguf, read_gguf_tokenizer
from dcinterp.checkpoints.hub import cached_snapshot, download, hub_reason, with_tokenizer
from dcinterp.checkpoints.names import (
    OWN,
    PLANTED,
    SHIPPED,
    gguf_file,
    is_adapter,
    is_composition,
    refuse_file,
    refuse_missing_folder,
    shipped_models,
)
from dcinterp.checkpoints.read import OURS, read_config_file, read_model, require_own_kind
from dcinterp.checkpoints.tensor_files import count_tensors
from dcinterp.checkpoints.tokenizer_files import TOKENIZER_CONFIG, has_tokenizer, read_tokenizer, require_fit
from dcinterp.support.errors import UserError, nearest, reason, require_known
from dcinterp.support.file_names import COMPOSITION
from dcinterp.support.paths import path_of
from dcinterp.support.pretrained import asks_for_code, on_disk, read_pretrained, require_no_code
from dcinterp.support.progress import without_bars
from dcinterp.support.text import shown

if TYPE_CHECKING:
    from dcinterp.bridge import TransformerBridge
    from dcinterp.bridge.protocol import Bridge


Decoder = Literal["auto", "own"]


def load(
    name_or_path: str | Path | nn.Module,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    tokenizer: str | Path | Any | None = None,
    decoder: Decoder = "auto",
) -> TransformerBridge:
    """A model, ready to look into.

    Args:
        name_or_path: the name of a shipped model (`shipped_models()`), a local folder (of a model, of a PEFT adapter,
            or of what `dcinterp.compose` added to a model), a GGUF file, a hub id such as "EleutherAI/pythia-70m", or
            "planted:share-by-kp,noise=0.01" for a model whose circuit is known; or a model of transformers or a
            `PeftModel` in memory, which is copied. Only a hub id touches the network.
        device: where to put the model; the CPU when None.
        dtype: of the weights, or its name ("bfloat16"); when None as stored, and float32 for a GGUF file, the shipped
            models, and models of others that TransformerLens's bridge opens.
        tokenizer: the folder of another tokenizer than the model's own, or the name of a shipped model; also a
            tokenizer in memory. For models that come without one.
        decoder: "own" opens models of the Llama family (`model_type` llama, mistral, qwen2, qwen3) in our decoder,
            instead of TransformerLens's bridge over that of transformers; the logits of the same token ids are the
            same. Of a text, TransformerLens puts a BOS token in front where `cfg.default_prepend_bos` is set (Llama,
            Mistral; not Qwen), and our decoder where the tokenizer itself does. Where only a name fits, "own:NAME" says
            so too.

    Returns:
        A `DCBridge` for our models, TransformerLens's own bridge for any other causal language model. It remembers
        `source`, what it was loaded from, so that results can say how to make them again.

    Raises:
        UserError: there is no such model, or its folder is incomplete or damaged, or a weight is not finite, or the
            tokenizer does not fit it.
    """
    require_device(device)
    dtype = number_type(dtype)
    require_known("decoder", decoder, get_args(Decoder))
    by_name = tokenizer is None or isinstance(tokenizer, str | Path)
    words = read_tokenizer(tokenizer) if tokenizer is not None and by_name else tokenizer
    if isinstance(name_or_path, nn.Module):
        if decoder == "own" and getattr(getattr(name_or_path, "config", None), "model_type", None) not in OURS:
            raise UserError(
                'decoder="own" opens a folder or a hub id; save the model with save_pretrained and give its folder, or '
                "leave decoder out."
            )
        return _load_object(name_or_path, device, dtype, words)
    if not str(name_or_path).strip():
        raise UserError("The name of the model is empty; give a shipped model, a folder, or a hub id.")
    name = str(name_or_path)
    if decoder == "own" and not name.startswith(OWN):
        name = f"{OWN}{name}"
    bridge = _load(name.removeprefix(OWN), device, dtype, words, own=name.startswith(OWN))
    require_finite(bridge.original_model, name)
    if words is not None:
        require_fit(words, bridge.cfg.d_vocab, f"in {tokenizer}" if by_name else "given")
    if by_name:
        mark_source(bridge, name, dtype, None if tokenizer is None else str(tokenizer))
    return bridge


def load_beside(bridge: Bridge, name: str) -> TransformerBridge:
    """Another model to compare with one that is there: with the same type of weights, if one was asked for, and there.

    Raises:
        UserError: as `load` raises.
    """
    device = next(bridge.original_model.parameters()).device
    return load(name, dtype=getattr(bridge, "source_dtype", None), device=device)


def _load(name: str, device: Any, dtype: torch.dtype | None, words: Any, *, own: bool) -> TransformerBridge:
    if name in shipped_models():
        # Two of them are stored in half precision, which would be slow and inexact here.
        return _load_ours(SHIPPED / name, name, device, dtype or torch.float32, words)
    if name.startswith(PLANTED):
        if words is not None:
            raise UserError("A planted model has its own words; leave the tokenizer out.")
        return _load_planted(name.removeprefix(PLANTED), device, dtype)
    path = path_of(name)
    if (file := gguf_file(path)) is not None:
        if own:
            raise UserError(f'Our decoder does not read GGUF files; open {file} without {OWN!r} or decoder="own".')
        return _load_gguf(file, device, dtype, words)
    if path.is_dir():
        return _load_folder(path, device, dtype, words, own=own)
    refuse_file(name)
    refuse_missing_folder(name)
    return _load_hub(name, device, dtype, words, own=own)


def _load_folder(
    folder: Path, device: Any, dtype: torch.dtype | None, words: Any, name: str = "", *, own: bool
) -> TransformerBridge:
    from dcinterp.checkpoints.layouts import opens_by_default

    if is_composition(folder):
        base = base_of(folder, COMPOSITION)
        model = read_composed(folder, device, dtype)
        return _wrap_ours(model, folder if has_tokenizer(folder) else base, name or folder.name, words)
    if is_adapter(folder):
        if own:
            raise UserError(
                f"{folder} holds an adapter, which our decoder does not read; save the model with the adapter merged, "
                f'or open it without {OWN!r} or decoder="own".'
            )
        own_words = next((each for each in (folder, base_of(folder)) if has_tokenizer(each)), None)
        words = words if words is not None or own_words is None else read_tokenizer(own_words)
        return _wrap(read_adapted(folder, device, dtype), words, name or folder.name)
    fields = read_config_file(folder)
    kind = fields.get("model_type")
    require_next_token(folder / "config.json", fields)
    if own:
        require_own_kind(kind, str(folder))
    if own or kind in OURS or opens_by_default(kind):
        return _load_ours(folder, name or folder.name, device, dtype, words)
    if not isinstance(kind, str):
        raise UserError(
            f"model_type in {folder / 'config.json'} is {shown(kind)}, not the name of a kind of model; copy it again "
            "from the source of the model."
        )
    bridge = _load_foreign(folder, kind, device, dtype, words)
    if name:
        bridge.cfg.model_name = name
    return bridge


def _load_foreign(folder: Path, kind: str, device: Any, dtype: torch.dtype | None, words: Any) -> TransformerBridge:
    """A model of others, read by transformers; its files are looked at first, for transformers believes them."""
    from dcinterp.bridge import boot, wrap_foreign

    require_no_code(folder)
    require_counts(folder / "config.json", read_config_file(folder), count_tensors(folder))
    try:
        if words is None and not has_tokenizer(folder):
            return wrap_foreign(_read_foreign_model(folder, device, dtype), None, str(folder))
        if words is None and asks_for_code(folder / TOKENIZER_CONFIG):
            words = read_tokenizer(folder)  # and not by TransformerLens, which would do as it is told
        with on_disk(words) as tokenizer:
            return boot(str(folder), device=str(device) if device else None, dtype=dtype, tokenizer=tokenizer)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # of as many classes as there are libraries below
        if words is None and has_tokenizer(folder):
            read_tokenizer(folder)  # which says so if it is the tokenizer
        raise UserError(
            f"{folder} holds a model of type {shown(kind, 30)}, which transformers and TransformerLens do not load: "
            f"{reason(error)}."
        ) from error


def _read_foreign_model(folder: Path, device: Any, dtype: torch.dtype | None) -> Any:
    from transformers import AutoModelForCausalLM

    with without_bars():
        model = read_pretrained(
            AutoModelForCausalLM,
            folder,
            dtype=dtype or torch.float32,
            attn_implementation="eager",
            local_files_only=True,
        )
    return model.to(device) if device else model


def _load_gguf(file: Path, device: Any, dtype: torch.dtype | None, words: Any) -> TransformerBridge:
    model = read_gguf(file, dtype)
    if words is None:
        words = read_tokenizer(file.parent) if has_tokenizer(file.parent) else read_gguf_tokenizer(file)
    return _wrap(model.to(device) if device else model, words, file.stem)


def _load_object(model: Any, device: Any, dtype: torch.dtype | None, words: Any) -> TransformerBridge:
    if getattr(model, "config", None) is None or hasattr(model, "original_model"):
        raise UserError(
            f"A {type(model).__name__} is not a language model of transformers; give one, or what it was saved as."
        )
    require_next_token(
        f"The config of this {type(model).__name__}",
        {name: getattr(model.config, name, None) for name in ("model_type", "is_encoder_decoder")}
        | {"architectures": [type(model).__name__]},
    )
    place = str(getattr(model.config, "name_or_path", "") or "")
    if words is None and place and Path(place).is_dir() and has_tokenizer(Path(place)):
        words = read_tokenizer(place)
    model = merged_copy(model)
    require_finite(model, f"this {type(model).__name__}")
    if dtype is not None:
        _cast(model, dtype)
    bridge = _wrap(model.to(device=device), words, Path(place).name or type(model).__name__)
    if words is not None:
        require_fit(words, bridge.cfg.d_vocab, "given")
    return bridge


def _cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Parameters in another type, as `from_pretrained` has them; buffers, such as rotary frequencies, stay exact."""
    keep = tuple(getattr(model, "_keep_in_fp32_modules", None) or ())
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not any(part in name.split(".") for part in keep):
            parameter.data = parameter.data.to(dtype)


def _wrap(model: Any, words: Any, name: str) -> TransformerBridge:
    """A bridge over a model in memory, of ours or of others."""
    from dcinterp.bridge import wrap, wrap_foreign

    ours = getattr(model.config, "model_type", None) in OURS
    return (wrap if ours else wrap_foreign)(model, words, name)


def _load_ours(folder: Path, name: str, device: Any, dtype: torch.dtype | None, words: Any) -> TransformerBridge:
    return _wrap_ours(read_model(folder, device=device, dtype=dtype), folder, name, words)


def _wrap_ours(model: Any, folder: Path, name: str, words: Any) -> TransformerBridge:
    """A bridge over a model of ours, with the tokenizer in `folder` unless another is given."""
    from transformers import PreTrainedTokenizerFast

    from dcinterp.bridge import wrap

    if words is None and has_tokenizer(folder) and (folder / "tokenizer.json").exists():
        try:
            words = PreTrainedTokenizerFast.from_pretrained(folder)
        except Exception as error:  # the tokenizers library raises bare exceptions
            raise UserError(f"The tokenizer in {folder} is damaged ({reason(error)}); copy its files again.") from error
    elif words is None and has_tokenizer(folder):
        words = read_tokenizer(folder)  # of other files, such as vocab.json and merges.txt
    if words is None:
        return wrap(model, None, name)
    try:
        opened = words.bos_token_id is not None and words("a").input_ids[:1] == [words.bos_token_id]
    except Exception as error:  # as above
        raise UserError(
            f"The tokenizer in {words.name_or_path or folder} is damaged ({reason(error)}); copy its files again."
        ) from error
    if words.bos_token is None:
        words = copy.deepcopy(words)
        words.bos_token = words.eos_token  # Qwen's has none; this one no text begins with either
    bridge = wrap(model, words, name)
    bridge.cfg.default_prepend_bos = opened
    return bridge


def _load_planted(line: str, device: Any, dtype: torch.dtype | None) -> TransformerBridge:
    from dcinterp.bridge import wrap
    from dcinterp.planted import read_plant, tokenizer

    planted = read_plant(line)
    return wrap(planted.model.to(device, dtype), tokenizer(), f"planted {planted.circuit}")


def _boot_hub(name: str, device: Any, dtype: torch.dtype | None, words: Any) -> TransformerBridge:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    from dcinterp.bridge import boot

    if words is None:
        asks = False
        try:
            asks = asks_for_code(Path(hf_hub_download(name, TOKENIZER_CONFIG)))
        except LocalEntryNotFoundError:  # the hub did not answer, and nobody knows
            raise
        except EntryNotFoundError:  # as of models with tokenizers of other files
            pass
        if asks:
            raise UserError(
                f"The tokenizer of {name} asks for code of its own to be run (trust_remote_code in its "
                f"{TOKENIZER_CONFIG}), which dcinterp does not do; give another with tokenizer=."
            )
    try:
        with on_disk(words) as tokenizer:
            return boot(name, device=str(device) if device else None, dtype=dtype, tokenizer=tokenizer)
    except (UserError, MemoryError, OSError):
        raise
    except Exception as error:  # of as many classes as there are libraries below
        raise UserError(
            f"The hub gave {name}, which transformers and TransformerLens do not load: {reason(error)}."
        ) from error


def _load_hub(name: str, device: Any, dtype: torch.dtype | None, words: Any, *, own: bool) -> TransformerBridge:
    from huggingface_hub.errors import EntryNotFoundError

    try:
        folder = cached_snapshot(name)
        if folder is not None and words is None:
            folder = with_tokenizer(name, folder)
        folder = folder or download(name, own=own)
        if folder is None:
            return _boot_hub(name, device, dtype, words)
        return _load_folder(folder, device, dtype, words, name, own=own)
    except UserError:
        raise
    except (OSError, ValueError, EntryNotFoundError) as error:
        close = get_close_matches(name, shipped_models(), cutoff=0.6)  # the whole list would hide the rest
        hint = f" ({nearest(name, shipped_models())})" if close and "/" not in name else ""
        raise UserError(
            f"There is no shipped model {name!r} and no folder of that name{hint}, and the hub did not give it "
            f"either: {hub_reason(error)}"
        ) from error
