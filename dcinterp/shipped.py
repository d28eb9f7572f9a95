"""The trained models inside the package, by name; without torch, so that a shell can complete them at once."""

from __future__ import annotations

from pathlib import Path

SHIPPED = Path(__file__).parent / "pretrained"


def shipped_models() -> tuple[str, ...]:
    """Names of the trained models inside the package."""
    return tuple(sorted(folder.name for folder in SHIPPED.iterdir() if (folder / "config.json").is_file()))
