"""Models of transformers, read whole: what its own reading makes up or lets pass is refused here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dcinterp.support.errors import UserError, shortened
from dcinterp.support.json_files import read_json_object

LAYER = re.compile(r"(?:.*\.)?((?:layers|h|blocks)\.\d+)\.")
"""The layer that a tensor belongs to, by its name."""

WEIGHTS = (".safetensors", ".bin", ".gguf")

WITHOUT_CODE = {"trust_remote_code": False}
"""For all that transformers reads: unless told, it asks a person at the terminal whether to run the files' own code."""


@contextmanager
def on_disk(tokenizer: Any) -> Iterator[Any]:
    """A tokenizer as one that was read from files: TransformerLens reads it again, from where it came; None stays.

    It does so with what the files say as options, among which one may ask for their own code to be run.
    """
    from transformers import AutoTokenizer

    if tokenizer is None:
        yield None
        return
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        words = AutoTokenizer.from_pretrained(folder, local_files_only=True, **WITHOUT_CODE)
        words.init_kwargs |= WITHOUT_CODE
        yield words


def asks_for_code(path: Path) -> bool:
    """Whether a tokenizer_config.json asks by itself for code to be run, where it is read a second time."""
    return path.is_file() and bool(read_json_object(path).get("trust_remote_code"))


def require_no_code(folder: Path) -> None:
    """Refuse a model that takes Python code which lies beside it, before any library looks at it.

    Where transformers has a class of its own for the kind of model, that is used, and the code is left alone.

    Raises:
        UserError: its config names code, and transformers has no class for it.
    """
    path = folder / "config.json"
    fields = read_json_object(path) if path.is_file() else {}
    if not isinstance(code := fields.get("auto_map"), dict):
        return
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind, registered = fields.get("model_type"), set(CONFIG_MAPPING.keys()) - set(CONFIG_MAPPING_NAMES)
    known = {"AutoConfig": CONFIG_MAPPING_NAMES, "AutoModelForCausalLM": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    for name, own in known.items():
        if name in code and (not isinstance(kind, str) or kind not in (*own, *registered)):
            raise UserError(
                f"{shortened(str(folder), 120)} brings code of its own (auto_map in its config.json), which dcinterp "
                "does not run; give a conversion of the model to a kind that transformers knows."
            )


def read_pretrained(kind: Any, name: str | Path, **options: Any) -> Any:
    """`kind.from_pretrained(name, ...)`, where every weight of the model is in the files.

    Where one is missing, transformers makes up random numbers, and only its log says so.

    Args:
        kind: a class of models, or an Auto class.
        name: a folder, or a hub id.
        options: as `from_pretrained` takes them.

    Raises:
        UserError: a weight is missing or one too many, or the config asks for a model much larger than its files.
    """
    if Path(name).is_dir():
        require_no_code(Path(name))
        _require_size(kind, Path(name), options)
    model, report = kind.from_pretrained(name, output_loading_info=True, **(options | WITHOUT_CODE))
    missing = sorted(map(str, report.get("missing_keys") or ()))
    if missing:
        raise UserError(
            f"The weights of {shortened(str(name), 120)} do not fit its config.json (nothing gives {missing[0][:60]}); "
            "use files that belong together."
        )
    known = {*model.state_dict()}
    layers = {match[1] for name in known if (match := LAYER.match(name))}
    for extra in sorted(map(str, report.get("unexpected_keys") or ())):
        if (match := LAYER.match(extra)) and match[1] not in layers:
            raise UserError(
                f"The weights of {shortened(str(name), 120)} do not fit its config.json (they have {match[1]}, which "
                "it does not ask for); use files that belong together."
            )
        stem, _, part = extra.rpartition(".")
        # Old checkpoints hold masks and tables as well, of modules without a weight.
        if match and (part == "weight" or (part == "bias" and f"{stem}.weight" in known)):
            raise UserError(
                f"The weights of {shortened(str(name), 120)} do not fit its config.json (they have {extra[:80]}, which "
                "it does not ask for, so the logits would be wrong); use files that belong together."
            )
    return model


def _require_size(kind: Any, folder: Path, options: dict[str, Any]) -> None:
    """Refuse a config that asks for more numbers than the files have bits, before memory is taken for them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    bits = 8 * sum(path.stat().st_size for path in folder.iterdir() if path.suffix in WEIGHTS and path.is_file())
    count = 0
    with suppress(Exception), torch.device("meta"):  # what cannot be made without memory is not refused for it
        config = options.get("config") or AutoConfig.from_pretrained(
            folder, local_files_only=True, **WITHOUT_CODE, **{k: v for k, v in options.items() if k == "gguf_file"}
        )
        model = (kind if hasattr(kind, "from_config") else AutoModelForCausalLM).from_config(config)
        count = sum(each.numel() for each in (*model.parameters(), *model.buffers()))
    if count > bits + 2**24:
        raise UserError(
            f"{folder / 'config.json'} asks for a model of {count:,} numbers, and the weights beside it have only "
            f"{bits // 8:,} bytes; use files that belong together."
        )
