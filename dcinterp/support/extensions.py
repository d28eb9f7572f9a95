"""What other installed packages add to dcinterp, as their entry points say.

    [project.entry-points."dcinterp.composers"]
    mine = "my_package.compose:Mine"

Every process of an environment knows what is installed there: runs of sweeps, workers of a cluster, the command line.
Nothing of a package is imported before somebody asks for its name, or for all that there is.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from functools import cache
from hashlib import blake2b
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from dcinterp.support.errors import UserError, reason

GROUPS = ("analyses", "composers", "figures", "puzzles")
WAY_OUT = "mend that package or uninstall it"
OF_ANOTHER = "One that another package adds is known once that is installed here."

T = TypeVar("T")


@cache
def entries(group: str) -> Mapping[str, EntryPoint]:
    """What packages add to a group, by name. Cost: some milliseconds, once; nothing is imported.

    Args:
        group: one of `GROUPS`.

    Raises:
        UserError: two packages add different things under one name.
    """
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=f"dcinterp.{group}"), key=lambda each: (each.name, each.value)):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            both = f"{package_of(other)} and {package_of(entry)}"
            raise UserError(f"{both} both add {entry.name!r} to dcinterp.{group}; uninstall one of them.")
    return found


def package_of(entry: EntryPoint) -> str:
    """The name of the package that adds it."""
    return entry.dist.name if entry.dist is not None else entry.module


def require_new(group: str, own: Collection[str]) -> None:
    """Refuse packages that add what dcinterp has under the same name: which of the two is meant, nobody could tell.

    Raises:
        UserError: there is such a package; the message names it.
    """
    for name, entry in entries(group).items():
        if name in own:
            raise UserError(f"{package_of(entry)} adds {name!r} to dcinterp.{group}, which has one; {WAY_OUT}.")


def load_entry(group: str, name: str) -> Any:
    """What a package adds under a name.

    Raises:
        UserError: it cannot be imported.
        KeyError: no package adds this name.
    """
    entry = entries(group)[name]
    try:
        return entry.load()
    except Exception as error:
        raise UserError(
            f"{package_of(entry)} adds {name!r} to dcinterp.{group}, and {entry.value} does not load "
            f"({type(error).__name__}: {reason(error)}); {WAY_OUT}."
        ) from error


def load_all(group: str) -> dict[str, Any]:
    """All that packages add to a group, by name; what does not load is left out with a warning."""
    found: dict[str, Any] = {}
    for name in entries(group):
        try:
            found[name] = load_entry(group, name)
        except UserError as error:
            warnings.warn(f"{error} It is left out.", stacklevel=2)
    return found


class Classes(MutableMapping[str, type[T]]):
    """Classes by their `name`: those of this repository, and those that packages add, imported when asked for.

    Args:
        own: of this repository.
        base: what all of them are made from.
        group: where packages add to it.
    """

    def __init__(self, own: Mapping[str, type[T]], base: type[Any], group: str) -> None:
        self._known, self._own, self._base, self._group = dict(own), frozenset(own), base, group

    def __getitem__(self, name: str) -> type[T]:
        self._require_new()
        if name not in self._known:
            made = load_entry(self._group, name)
            if not (isinstance(made, type) and issubclass(made, self._base) and getattr(made, "name", "") == name):
                entry = entries(self._group)[name]
                raise UserError(
                    f"{package_of(entry)} adds {name!r} to dcinterp.{self._group}, and {entry.value} is no "
                    f"{self._base.__name__} whose name is {name!r}; {WAY_OUT}."
                )
            self._known[name] = made
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in entries(self._group)

    def __iter__(self) -> Iterator[str]:
        self._require_new()
        return iter(dict.fromkeys((*self._known, *entries(self._group))))

    def __len__(self) -> int:
        return len({*self._known, *entries(self._group)})

    def __setitem__(self, name: str, value: type[T]) -> None:
        self._known[name] = value

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def _require_new(self) -> None:
        require_new(self._group, self._own)


@cache
def sources() -> str:
    """The packages that add something, with a digest of their sources; empty where there are none."""
    found = {entry.module.partition(".")[0]: package_of(entry) for group in GROUPS for entry in entries(group).values()}
    return ", ".join(f"{package} (sources {_digest(module)})" for module, package in sorted(found.items()))


def _digest(module: str) -> str:
    spec, digest = find_spec(module), blake2b(digest_size=4)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    files = [(folder, file) for folder in folders for file in sorted(folder.rglob("*.py"))]
    if spec is not None and not folders and spec.origin is not None:
        files = [(Path(spec.origin).parent, Path(spec.origin))]
    for folder, file in files:
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
