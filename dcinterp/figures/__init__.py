"""Figures: a function from a result to a Plotly figure, one file a kind of figure.

A kind is a module here with `RESULT` (the name of the result class that it draws) and
`plot(result, *, theme, **options) -> go.Figure`. `plot` below finds the one for any result.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dcinterp.errors import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["kinds", "plot"]


def plot(result: Any, *, theme: str = "light", **options: Any) -> go.Figure:
    """The figure of a result.

    Args:
        result: what an analysis returned.
        theme: "light" or "dark", the background it will stand on.
        options: of the kind of figure; see its module.

    Raises:
        UserError: nothing draws this kind of result.
    """
    name = type(result).__name__
    if name not in kinds():
        raise UserError(f"There is no figure for a {name}; figures exist for {', '.join(sorted(kinds()))}.")
    return kinds()[name].plot(result, theme=theme, **options)


@cache
def kinds() -> dict[str, ModuleType]:
    """The modules that draw, by the name of the result they draw."""
    modules = (import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__))
    return {module.RESULT: module for module in modules if hasattr(module, "RESULT")}
