"""What other installed packages add to dcinterp, as their entry points say.

    [project.entry-points."dcinterp.composers"]
    mine = "my_package.compose:Mine"

Every process of an environment knows what is installed there: runs of sweeps, workers of a cluster, the command line.
Nothing of a package is imported before somebody asks for its name, or for all that there is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from dcinterp.support.digest import sources_digest
from dcinterp.support.errors import UserError, reason

GROUPS = ("analyses", "composers", "figures", "puzzles")
WAY_OUT = "mend that package or uninstall it"
OF_ANOTHER = "One that another package adds is known once that is installed here."

T = TypeVar("T")


class Unfit(UserError):
    """What a package adds does not load, or does not fit; `why` is a clause that says so of the `entry`."""

    def __init__(self, entry: EntryPoint, why: str, said: str = "") -> None:
        whole = f"{package_of(entry)} adds {entry.name!r} to {entry.group}, and {why}; {WAY_OUT}."
        super().__init__(said or whole)
        self.entry, self.why = entry, why


@cache
def entries(group: str) -> Mapping[str, EntryPoint]:
    """What packages add to a group, by name (figures, which nobody names, by module). Cost: some milliseconds, once.

    Nothing is imported. An analysis whose name is no name of a function is left out with a warning. Where two packages
    add different things under one name, it is refused when it is asked for (`load_entry`).

    Args:
        group: one of `GROUPS`.
    """
    found: dict[str, EntryPoint] = {}
    for entry in _sorted(entry_points(group=f"dcinterp.{group}")):
        if group == "analyses" and not entry.name.isidentifier():
            leave_out(entry, "an analysis has the name of its function there")
            continue
        found.setdefault(entry.value if group == "figures" else entry.name, entry)
    return found


def _sorted(found: Iterable[EntryPoint]) -> list[EntryPoint]:
    return sorted(found, key=lambda each: (each.name, each.value))


def _other(entry: EntryPoint) -> EntryPoint | None:
    """Another thing that has the same name; figures have none by which one asks for them."""
    named = () if entry.group == "dcinterp.figures" else entry_points(group=entry.group, name=entry.name)
    return next((each for each in _sorted(named) if each.value != entry.value), None)


def package_of(entry: EntryPoint) -> str:
    """The name of the package that adds it."""
    return entry.dist.name if entry.dist is not None else entry.module


def of_package(name: str, module: str) -> bool:
    """Whether a package adds an analysis of this name, and this is a module of that package."""
    entry = entries("analyses").get(name)
    return entry is not None and entry.module.partition(".")[0] == module.partition(".")[0]


def leave_out(entry: EntryPoint, why: str) -> None:
    """Tell, once, that something of a package is not taken."""
    if (entry.group, entry.name, entry.value) not in _told:
        _told.add((entry.group, entry.name, entry.value))
        said = f"{package_of(entry)} adds {entry.name!r} to {entry.group}, and {why}; it is left out."
        warnings.warn(said, stacklevel=3)


_told: set[tuple[str, str, str]] = set()


def load_entry(group: str, name: str, obstacle: Callable[[Any], str] = lambda made: "") -> Any:
    """What a package adds under a name.

    Args:
        obstacle: says why it does not fit, where it does not.

    Raises:
        Unfit: it cannot be imported, does not fit, or two packages add one of this name.
        KeyError: no package adds this name.
    """
    entry = entries(group)[name]
    if (other := _other(entry)) is not None:
        both = f"{package_of(entry)} and {package_of(other)}"
        said = f"{both} both add {entry.name!r} to {entry.group}; uninstall one of them."
        raise Unfit(entry, f"{package_of(other)} adds one too", said)
    try:
        made = entry.load()
    except (Exception, SystemExit) as error:
        why = f"{entry.value} does not load ({type(error).__name__}: {reason(error, 160)})"
        raise Unfit(entry, why) from error
    if why := obstacle(made):
        raise Unfit(entry, why)
    return made


def load_all(group: str, own: Collection[str] = ()) -> dict[str, Any]:
    """All that packages add to a group, by name; what does not load is left out with a warning.

    Args:
        own: names that dcinterp has; what a package adds under one of them is left out too.
    """
    found: dict[str, Any] = {}
    for name, entry in entries(group).items():
        if name in own:
            leave_out(entry, "dcinterp has one of that name")
            continue
        try:
            found[name] = load_entry(group, name)
        except Unfit as error:
            leave_out(error.entry, error.why)
    return found


class Classes(MutableMapping[str, type[T]]):
    """Classes by their `name`: those of this repository, and those that packages add, imported when asked for.

    Args:
        own: of this repository.
        base: what all of them are made from.
        group: where packages add to it.
        taken: further names that mean something already.
    """

    def __init__(self, own: Mapping[str, type[T]], base: type[Any], group: str, taken: Collection[str] = ()) -> None:
        self._known, self._own, self._base, self._group = dict(own), frozenset((*own, *taken)), base, group
        self._gone: set[str] = set()
        self._clashes: Mapping[str, EntryPoint] | None = None

    def __getitem__(self, name: str) -> type[T]:
        # Which of the two is meant, nobody could tell.
        if (clash := self.look_for_clashes().get(name)) is not None:
            said = f"{package_of(clash)} adds {name!r} to {clash.group}, which has one; {WAY_OUT}."
            raise Unfit(clash, "dcinterp has one of that name", said)
        if name not in self._known:
            if name not in self._names():
                raise KeyError(name)
            self._known[name] = load_entry(self._group, name, partial(self._obstacle, name))
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __setitem__(self, name: str, value: type[T]) -> None:
        if obstacle := self._obstacle(name, value):
            raise UserError(f"{name!r} cannot stand in dcinterp.{self._group}: {obstacle}.")
        self._known[name] = value
        self._gone.discard(name)

    def __delitem__(self, name: str) -> None:
        if name not in self._names():
            raise KeyError(name)
        self._known.pop(name, None)
        self._gone.add(name)

    def __repr__(self) -> str:
        return f"dcinterp.{self._group}: {', '.join(self)}"

    def that_load(self) -> dict[str, type[T]]:
        """All of them; what a package adds and does not load, or does not fit, is left out with a warning."""
        found: dict[str, type[T]] = {}
        for name in self:
            try:
                found[name] = self._known[name] if name in self._known else self[name]
            except Unfit as error:
                leave_out(error.entry, error.why)
        return found

    def _names(self) -> tuple[str, ...]:
        added = entries(self._group)
        return tuple(dict.fromkeys((*self._known, *(name for name in added if name not in self._gone))))

    def look_for_clashes(self) -> Mapping[str, EntryPoint]:
        """What packages add under names of ours; found once, as a traced forward pass, which asks here, cannot look."""
        if self._clashes is None:
            self._clashes = {name: entry for name, entry in entries(self._group).items() if name in self._own}
        return self._clashes

    def _obstacle(self, name: str, value: Any) -> str:
        """Why something cannot stand under a name; nothing where it can."""
        here = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(value))}"
        if not (isinstance(value, type) and issubclass(value, self._base) and getattr(value, "name", "") == name):
            return f"{here} is no {self._base.__name__} whose name is {name!r}"
        return "dcinterp has one of that name" if name in self._own and self._known.get(name) is not value else ""


@cache
def sources() -> str:
    """The packages that add something, with a digest of their sources; empty where there are none."""
    found = {entry.module.partition(".")[0]: package_of(entry) for group in GROUPS for entry in entries(group).values()}
    return ", ".join(f"{package} (sources {sources_digest(_sources(mod))})" for mod, package in sorted(found.items()))


def _sources(module: str) -> list[tuple[Path, Path]]:
    """The files of a module or package, each with the folder that its name is counted from; nothing is imported."""
    spec = find_spec(module)
    if spec is None:
        return []
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not folders and spec.origin is not None:
        return [(Path(spec.origin).parent, Path(spec.origin))]
    return [(folder, file) for folder in folders for file in sorted(folder.rglob("*.py"))]
