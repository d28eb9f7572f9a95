"""Errors for the person: one sentence that names the thing and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable


class UserError(ValueError):
    """Bad input by a person. The command line and the app print the message alone, without a traceback."""


def require_known(kind: str, name: str, known: Collection[str]) -> None:
    """Raise a UserError that suggests the nearest name if `name` is no `kind` that is `known`."""
    if name not in known:
        raise UserError(f"There is no {kind} {name!r}; {nearest(name, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that suggests the names closest to `name`, or lists the known ones when they are few."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"choose from {', '.join(names)}." if len(names) <= 20 else f"there are {len(names)} to choose from."
