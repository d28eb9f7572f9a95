"""Paths and patterns of files that a person typed."""

from __future__ import annotations

from pathlib import Path

from dcinterp.support.errors import UserError, reason, shortened
from dcinterp.support.text import shown


def path_of(text: str | Path) -> Path:
    """A path with its `~`, whether or not there is anything.

    Raises:
        UserError: nothing can have that path: it is too long, has a zero byte, or names a user who is not there.
    """
    path = Path(text)
    try:
        if "\0" in str(path):
            raise ValueError("it has a zero byte")
        path = path.expanduser()
        path.exists()
    except RuntimeError as error:
        raise UserError(f"{shown(str(text))} begins with a user who is not on this machine; check the path.") from error
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or reason(error)
        raise UserError(f"{shortened(str(text), 80)!r} cannot be a path ({said}); check it.") from error
    return path


def matching(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder that a pattern such as `**/*.py` selects, in order, without those that are hidden.

    Raises:
        UserError: it is no pattern.
    """
    try:
        found = sorted(folder.glob(pattern))
    except (ValueError, NotImplementedError, IndexError) as error:
        raise UserError(f"{pattern!r} is no pattern for files ({reason(error)}); write one such as **/*.py.") from error
    return [path for path in found if path.is_file() and not hidden(path, folder)]


def hidden(path: Path, folder: Path) -> bool:
    """Whether a file of a folder, or a folder on the way to it, has a name that begins with a dot."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)
