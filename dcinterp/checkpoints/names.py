"""Names of models: shipped ones, folders, and what can be neither; without torch, so that a shell can complete."""

from __future__ import annotations

from pathlib import Path

from dcinterp.support.errors import UserError

SHIPPED = Path(__file__).parent / "shipped"

PLANTED = "planted:"
"""What a name begins with that stands for a model built by hand (see dcinterp.planted)."""


OWN = "own:"
"""What a name begins with that is to be opened in our decoder, where TransformerLens would open it too."""


def layout_names() -> tuple[str, ...]:
    """The foreign layouts of checkpoints that can be read and written: a file of `layouts` each."""
    return tuple(sorted(path.stem for path in (Path(__file__).parent / "layouts").glob("[!_]*.py")))


def shipped_models() -> tuple[str, ...]:
    """Names of the trained models inside the package."""
    return tuple(sorted(folder.name for folder in SHIPPED.iterdir() if (folder / "config.json").is_file()))


def refuse_file(name: str) -> None:
    """Raise a UserError if `name` is a file, where the folder of a model is meant."""
    if Path(name).expanduser().is_file():
        raise UserError(f"{name} is a file; give the folder that holds config.json and the weights.")


def is_path(name: str) -> bool:
    """Whether a name can only be meant as that of a folder or a file."""
    return Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or "\\" in name


def refuse_missing_folder(name: str) -> None:
    """Raise a UserError if `name` can only be meant as a folder, and there is none: what is left may be a hub id."""
    if is_path(name) and not Path(name).expanduser().is_dir():
        raise UserError(f"There is no folder {name}; check the path.")
