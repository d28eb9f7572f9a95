"""The kinds of planted circuit, one file each: a module with a `NAME` (see `dcinterp.planted.circuit.Circuit`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dcinterp.support.errors import UserError

if TYPE_CHECKING:
    from dcinterp.planted.circuit import Circuit


FIRST = ("gate-by-qg", "many-to-one", "share-by-kp", "share-by-qp")
"""The circuits that share a model since version 0.1, in their order there."""


@cache
def circuits() -> Mapping[str, Circuit]:
    """All kinds of circuit by name."""
    modules: list[Any] = [import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__)]
    found: dict[str, Circuit] = {}
    for module in (each for each in modules if hasattr(each, "NAME")):
        if module.NAME in found:
            raise UserError(f"Two planted circuits are called {module.NAME!r}; rename the one in {module.__name__}.")
        found[module.NAME] = module
    return MappingProxyType(found)


def together() -> tuple[str, ...]:
    """The kinds that can live in one model, each with question words of its own.

    The first ones keep their order, whatever is added: a name such as "share-by-kp circuits=2" stays the same model.
    """
    able = [name for name, kind in circuits().items() if not getattr(kind, "ALONE", False)]
    return (*FIRST, *(name for name in able if name not in FIRST))


FORMER = {"lend-by-kp": "share-by-kp", "lend-by-qp": "share-by-qp"}
"""Names that circuits had in version 0.1; old links and results still work."""
