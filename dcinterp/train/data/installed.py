"""The Python sources of what is installed: text that every machine has, the same on one system where versions are.

Two files say what Python and numpy were built for and with, so another system, or another build, has other text.
"""

from __future__ import annotations

import sysconfig
from importlib import metadata
from pathlib import Path

from dcinterp.support.errors import UserError

STANDARD = "python"
"""The name of Python's own standard library among packages."""

SKIPPED = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3", "config"}
"""Folders that are no part of the text: what is installed beside the library, and tests, which repeat themselves."""


def python_sources(packages: tuple[str, ...] | list[str]) -> list[tuple[str, Path]]:
    """(name, file) of every source file of these packages without their tests, in an order that machines share.

    Args:
        packages: names of installed distributions, and "python" for the standard library. A name is the package's and
            the file's place in it.

    Raises:
        UserError: a package is not installed, or has no Python source.
    """
    found: list[tuple[str, Path]] = []
    for package in packages:
        if not package.strip():
            raise UserError("data.text.packages has an empty name; leave it out.")
        files = _standard() if package == STANDARD else _distribution(package)
        if not files:
            raise UserError(f"The package {package} has no Python source; leave it out of data.text.packages.")
        found += sorted((f"{package}/{place}", file) for place, file in files)
    return found


def is_installed(package: str) -> bool:
    """Whether a name is that of an installed distribution, or "python"."""
    if package == STANDARD:
        return True
    try:
        metadata.distribution(package)
    except (metadata.PackageNotFoundError, ValueError):
        return False
    return True


def _standard() -> list[tuple[str, Path]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    return [(place.as_posix(), root / place) for p in root.rglob("*.py") if _is_text(place := p.relative_to(root))]


def _distribution(package: str) -> list[tuple[str, Path]]:
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError as error:
        raise UserError(
            f"The package {package!r} of data.text.packages is not installed; install it, or leave it out."
        ) from error
    places = [Path(str(place)) for place in distribution.files or [] if place.suffix == ".py"]
    return [(place.as_posix(), file) for place in places if _is_text(place) and (file := _located(distribution, place))]


def _located(distribution: metadata.Distribution, place: Path) -> Path | None:
    file = Path(str(distribution.locate_file(str(place))))
    return file if file.is_file() else None


def _is_text(place: Path) -> bool:
    """Whether a file belongs to the text; those above the installed packages, such as scripts, do not."""
    first, *_ = parts = place.parts
    return ".." not in parts and not SKIPPED.intersection(parts) and not first.startswith("config-")
