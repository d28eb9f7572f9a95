"""Names of models: shipped ones, folders, and what can be neither; without torch, so that a shell can complete."""

from __future__ import annotations

import re
from pathlib import Path

from dcinterp.support.errors import UserError
from dcinterp.support.file_names import COMPOSITION
from dcinterp.support.paths import path_of
from dcinterp.support.text import shown

SHIPPED = Path(__file__).parent / "shipped"

PLANTED = "planted:"
"""What a name begins with that stands for a model built by hand (see dcinterp.planted)."""


OWN = "own:"
"""What a name begins with that is to be opened in our decoder, where TransformerLens would open it too."""

GGUF = ".gguf"
ADAPTER = "adapter_config.json"
"""The file by which one knows the folder of an adapter."""

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_OF_HUB = re.compile(r"(?:https?://(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://)([^?#]*)", re.IGNORECASE)


def layout_names() -> tuple[str, ...]:
    """The foreign layouts of checkpoints that can be read and written: a file of `layouts` each."""
    return tuple(sorted(path.stem for path in (Path(__file__).parent / "layouts").glob("[!_]*.py")))


def shipped_models() -> tuple[str, ...]:
    """Names of the trained models inside the package."""
    return tuple(sorted(folder.name for folder in SHIPPED.iterdir() if (folder / "config.json").is_file()))


def folder_of(name: str | Path) -> Path:
    """What a name stands for on this machine: the folder of a shipped model, or else the path itself."""
    return SHIPPED / str(name) if str(name) in shipped_models() else path_of(name)


def refuse_file(name: str) -> None:
    """Raise a UserError if `name` is a file, where the folder of a model is meant."""
    if path_of(name).is_file():
        raise UserError(f"{name} is a file; give the folder that holds config.json and the weights, or a .gguf file.")


def gguf_file(path: Path) -> Path | None:
    """The GGUF file that a path stands for: the file itself, or the only one of a folder without other weights.

    Raises:
        UserError: the folder has several.
    """
    if path.is_file():
        return path if path.suffix.lower() == GGUF else None
    if not path.is_dir() or any(any(path.glob(pattern)) for pattern in ("*.safetensors", "*.bin")):
        return None
    found = sorted(file for file in path.iterdir() if file.suffix.lower() == GGUF and file.is_file())
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:5])
        raise UserError(f"{path} has {len(found)} GGUF files ({names}); give the path of one of them.")
    return found[0] if found else None


def refuse_others(folder: Path) -> None:
    """Raise a UserError if `folder` is a composition, an adapter or a GGUF file: our decoder reads none of them."""
    if is_composition(folder):
        raise UserError(f"{folder} holds a composition; merge it first with: dcinterp compose {folder} --merge ...")
    if is_adapter(folder) or gguf_file(folder) is not None:
        raise UserError(
            f"{folder} is an adapter or a GGUF file, which our decoder does not read; save the model that it makes "
            "with save_pretrained first."
        )


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter of PEFT, or a composition, and no model of its own."""
    if (folder / "config.json").is_file():  # some programs write that of the base beside an adapter
        return (folder / ADAPTER).is_file() and not _other_weights(folder)
    return any((folder / name).is_file() for name in (ADAPTER, COMPOSITION))


def _other_weights(folder: Path) -> bool:
    """Whether a folder has weights beside those of an adapter; trainers leave other .bin files."""
    patterns = ("*.safetensors", "pytorch_model*.bin", "*.index.json")
    return any(not path.name.startswith("adapter_") for pattern in patterns for path in folder.glob(pattern))


def refuse_two_models(folder: Path) -> None:
    """Raise a UserError if a folder holds a model and an adapter: which of them is meant, libraries guess otherwise."""
    if (folder / ADAPTER).is_file() and (folder / "config.json").is_file() and _other_weights(folder):
        raise UserError(
            f"{folder} holds a model and an adapter ({ADAPTER}); move one of them into a folder of its own."
        )


def is_composition(folder: Path) -> bool:
    """Whether a folder holds a composition that was added to a model, and no model of its own."""
    return is_adapter(folder) and (folder / COMPOSITION).is_file()


def holds_model(folder: Path) -> bool:
    """Whether a folder holds a model of its own, or an adapter that makes one of another."""
    return (folder / "config.json").is_file() or is_adapter(folder)


def is_here(name: str) -> bool:
    """Whether a name stands for the files of a model: a folder with a config.json or an adapter, or a GGUF file."""
    path = path_of(name)
    return holds_model(path) or gguf_file(path) is not None


def is_path(name: str) -> bool:
    """Whether a name can only be meant as that of a folder or a file."""
    return Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or "\\" in name


def _hub_id(address: str) -> str:
    """The id of the model whose page has this address; empty where it is none of a model."""
    found = _OF_HUB.match(address)
    parts = [part for part in found[1].split("/") if part] if found else []
    below = [at for at, part in enumerate(parts) if part in ("tree", "blob", "resolve", "raw", "commit")]
    parts = parts[: below[0]] if below else parts
    if not 1 <= len(parts) <= 2 or parts[0] in ("datasets", "spaces", "docs", "models"):
        return ""
    return "/".join(parts).removesuffix(".git")


def refuse_missing_folder(name: str) -> None:
    """Raise a UserError if `name` can only be meant as a folder, and there is none: what is left may be a hub id."""
    if path_of(name).is_dir():
        return
    if _ADDRESS.match(name):
        known = _hub_id(name)
        instead = f"give the hub id {known}" if known else "give a folder, or a hub id such as EleutherAI/pythia-70m"
        raise UserError(f"{shown(name, 80)} is an address and no model's name; {instead}.")
    if is_path(name):
        raise UserError(f"There is no folder {name}; check the path.")
