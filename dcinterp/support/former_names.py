"""Names and words of version 0.1: they still work for one version, with a warning that says what to write instead.

    class ComposeBreakdown(Result):
        lent = former_name("lent", "shared")           # reading x.lent warns, and gives x.shared

    renamed({"twin": "asked"}, {"twin": "counterfactual", "counterfactual=asked": "question"})
    # {"counterfactual": "question"}

In such a table a key is a name, or `name=word` for a word that the name's value may be or hold.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

GOES = "the old name goes in version 0.3"


def former_name(old: str, new: str) -> Any:
    """A property that gives the attribute `new` and warns that it is no longer called `old`."""

    def read(self: Any) -> Any:
        warn_of(old, new, depth=3)
        return getattr(self, new)

    return property(read, doc=f"The former name of `{new}`.")


def warn_of(old: str, new: str, depth: int = 2) -> None:
    """Say that `old` is called `new` now, to the caller `depth` calls above."""
    warnings.warn(f"{old} is called {new} now; {GOES}.", DeprecationWarning, stacklevel=depth + 1)


def renamed(given: Mapping[str, Any], table: Mapping[str, str]) -> dict[str, Any]:
    """Names and values as they are called now."""
    found = {table.get(name, name): value for name, value in given.items()}
    return {name: _word(name, value, table) for name, value in found.items()} if table else found


def _word(name: str, value: Any, table: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return table.get(f"{name}={value}", value)
    return tuple(_word(name, each, table) for each in value) if isinstance(value, tuple) else value
