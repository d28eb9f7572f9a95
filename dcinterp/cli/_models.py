"""Models by name, for verbs and for the shell that completes their arguments. Completion must not wait for torch."""

from __future__ import annotations

from pathlib import Path

import typer

from dcinterp.checkpoints.names import GGUF, OWN, SHIPPED, refuse_file, shipped_models
from dcinterp.support.paths import path_of


def model_names(incomplete: str) -> list[str]:
    """The shipped models, and the folders and GGUF files, that begin so."""
    above = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    start = "./" if incomplete.startswith("./") else ""  # which a path of Python's drops
    folders = [f"{start}{path}" for path in above.glob("*/") if path.is_dir() and not path.name.startswith(".")]
    folders += [f"{start}{path}" for path in above.glob(f"*{GGUF}")]
    return sorted(name for name in (*shipped_models(), *folders) if name.startswith(incomplete))


MODEL = typer.Argument(help="A shipped model, a folder, a .gguf file, or a hub id.", autocompletion=model_names)
TOKENIZER = typer.Option(
    help="Folder of another tokenizer than the model's own, or a shipped model; for a model without one.",
    metavar="FOLDER",
)


def preset_names(incomplete: str) -> list[str]:
    """The named configurations that begin so."""
    from dcinterp.model.presets import presets

    return [name for name in presets() if name.startswith(incomplete)]


def model_folder(name: str) -> Path:
    """The folder of a shipped model, or the folder itself; what is done with it is done in our decoder.

    Raises:
        UserError: there is no such folder.
    """
    from dcinterp.support.errors import UserError, nearest

    name = str(name).removeprefix(OWN)
    if name in shipped_models():
        return SHIPPED / name
    refuse_file(name)
    folder = path_of(name)
    if not folder.is_dir():
        raise UserError(
            f"There is no folder {name} and no shipped model of that name; {nearest(name, shipped_models())}"
        )
    return folder
