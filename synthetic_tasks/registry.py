"""Find the entries of a folder: every module of a package that defines one constant of a given name.

A new domain, relation or pattern is one new file; nothing else has to name it.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def collect(package: str, constant: str) -> Mapping[str, Any]:
    """Return name -> entry for each module of `package`, in alphabetical order of the modules.

    Every module must define `constant`, an object with a `name`; two entries of one name are an error.
    """
    entries: dict[str, Any] = {}
    search = importlib.import_module(package).__path__
    for name in sorted(module.name for module in pkgutil.iter_modules(search)):
        entry = getattr(importlib.import_module(f"{package}.{name}"), constant)
        assert entry.name not in entries, f"{package}.{name}: {entry.name!r} is registered twice"
        entries[entry.name] = entry
    return MappingProxyType(entries)


def lookup(registry: Mapping[str, Any], name: str, kind: str) -> Any:
    """Return `registry[name]`, or raise a ValueError that lists the names that exist."""
    try:
        return registry[name]
    except KeyError:
        raise ValueError(f"no {kind} is called {name!r}; there are {', '.join(registry)}") from None
