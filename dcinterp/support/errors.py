"""Errors for users: one sentence that names the thing and the way out."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Collection, Iterable


class UserError(ValueError):
    """Bad input by a person. The command line and the app print the message alone, without a traceback."""


def require_known(kind: str, name: str, known: Collection[str]) -> None:
    """Raise a UserError that suggests the nearest name if `name` is not one of the `known` ones."""
    if name not in known:
        raise UserError(f"There is no {kind} {name!r}; {nearest(name, known)}")


def require_number(kind: str, number: int, count: int) -> None:
    """Raise a UserError if there is no such one among `count` that are numbered from 0."""
    if not 0 <= number < count:
        raise UserError(f"There is no {kind} {number}; there are 0 to {count - 1}.")


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that suggests the names closest to `name`, or lists the known ones when they are few."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if len(names) <= 40:
        return f"choose from {', '.join(names)}."
    return f"there are {len(names):,} to choose from, such as {names[0]} and {names[len(names) // 2]}."


def reason(error: BaseException, width: int = 100) -> str:
    """What an error of a library says, as a clause for a sentence of ours: one short line without a full stop."""
    text = " ".join(_COLOURS.sub("", str(error)).split())
    if isinstance(error, KeyError):
        text = f"{text} is missing"
    text = re.split(r"[.:;] |[.:;]$", text)[0] if len(text) > width else text.rstrip(".:;")
    text = text or type(error).__name__
    return text if len(text) <= width else f"{text[: width - 3]}..."


def shortened(text: str, width: int = 300) -> str:
    """A text without its middle where it is longer than `width`: how it begins and the way out at its end stay."""
    if len(text) <= width:
        return text
    first = (width - 5) * 2 // 3
    return f"{text[:first]} ... {text[first + 5 - width :]}"


_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

_FILE_PROBLEMS = {
    errno.ENOENT: "There is no file or folder {}; check the path.",
    errno.EISDIR: "{} is a folder; give a file.",
    errno.ENOTDIR: "Part of the path {} is a file, not a folder; give another path.",
    errno.EEXIST: "{} exists already; give another path.",
    errno.EACCES: "{} cannot be read or written with your permissions; give another path.",
    errno.EPERM: "{} cannot be read or written with your permissions; give another path.",
    errno.ELOOP: "{} is a link that leads back to itself; give another path.",
    errno.ENAMETOOLONG: "The path {} is too long; give another one.",
    errno.EROFS: "{} is on a file system that cannot be written; give another path.",
}


def file_sentence(error: OSError) -> str:
    """What the system says of a file, as a sentence with the way out."""
    if error.errno == errno.ENOSPC:
        return "The disk is full; free some space, or write elsewhere."
    if error.errno in _FILE_PROBLEMS and error.filename is not None:
        return _FILE_PROBLEMS[error.errno].format(shortened(str(error.filename), 120))
    return str(error)
