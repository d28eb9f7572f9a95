"""The trained models inside the package, and names that stand for none; without torch, so that a shell can complete."""

from __future__ import annotations

from pathlib import Path

from dcinterp.errors import UserError

SHIPPED = Path(__file__).parent / "pretrained"


def shipped_models() -> tuple[str, ...]:
    """Names of the trained models inside the package."""
    return tuple(sorted(folder.name for folder in SHIPPED.iterdir() if (folder / "config.json").is_file()))


def refuse_file(name: str) -> None:
    """Raise a UserError if `name` is a file, where the folder of a model is meant."""
    if Path(name).expanduser().is_file():
        raise UserError(f"{name} is a file; give the folder that holds config.json and the weights.")
