"""Figures: a function from a result to a Plotly figure, one file a kind of figure.

The folders are those of the analyses; `base` is what they share. A kind is a module in one of them with `RESULT` (the
name of the result class that it draws), `KIND` (empty for the figure that a result gets when nobody asks for another)
and `plot(result, *, theme, **options) -> go.Figure`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from inspect import signature
from pkgutil import walk_packages
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_type_hints

from dcinterp.support.arguments import require_fitting
from dcinterp.support.errors import UserError, nearest, require_known
from dcinterp.support.extensions import entries, leave_out, load_all

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["kinds", "plot"]

GROUP = "figures"
"""Where packages add theirs (see dcinterp.support.extensions)."""

FORMER_KINDS = {"lending": "sharing"}
"""Words of version 0.1 for kinds of figure."""


def plot(result: Any, *, kind: str = "", theme: str = "light", **options: Any) -> go.Figure:
    """The figure of a result.

    Args:
        result: what an analysis returned.
        kind: another figure of the same result, such as "sharing" of a `ComposeBreakdown`.
        theme: "light" or "dark", the background it will stand on.
        options: of the kind of figure; see its module.

    Raises:
        UserError: nothing draws this kind of result, or the kind of figure has no such option.
    """
    name, kind = type(result).__name__, FORMER_KINDS.get(kind, kind)
    if (name, kind) not in kinds():
        own = [other for drawn, other in kinds() if drawn == name]
        if not own:
            raise UserError(
                f"{name} has no figure; read its table(), or call a plot function of your own."
                if hasattr(result, "to_dataframe") and hasattr(result, "call")
                else f"There is no figure for a {name}; give what an analysis returned, such as a Prediction. "
                "dcinterp.figures.kinds() names all results that have one."
            )
        figure = f"figure {kind!r}" if kind else "figure without a kind"
        named = " or ".join(f"kind={other!r}" for other in sorted(own) if other)
        choices = [f"choose {named}"] * bool(named) + ["leave kind out"] * ("" in own)
        raise UserError(f"There is no {figure} of a {name}; {', or '.join(choices)}.")
    draw = kinds()[name, kind].plot
    known = list(signature(draw).parameters)[2:]
    if unknown := [option for option in options if option not in known]:
        instead = nearest(unknown[0], known) if known else "it has none."
        raise UserError(f"This figure has no option {unknown[0]!r}; {instead}")
    require_known("theme", str(theme), ("light", "dark"))
    for option, hint in _hints(draw, options).items():
        require_fitting(option, options[option], hint)
    return draw(result, theme=theme, **options)


def _hints(draw: Any, options: Iterable[str]) -> dict[str, Any]:
    """The types of some of a figure's options; that of its result may be known to a type checker alone."""
    given = type("Given", (), {"__annotations__": {name: draw.__annotations__.get(name, Any) for name in options}})
    return get_type_hints(given, globalns=draw.__globals__, include_extras=True)


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except SyntaxError as error:
        raise UserError(f"The figure in {name} does not load (line {error.lineno}: {error.msg}).") from error


@cache
def kinds() -> dict[tuple[str, str], ModuleType]:
    """The modules that draw, by the result and the kind of figure; those of other packages too."""
    names = (info.name for info in walk_packages(__path__, f"{__name__}.") if not info.ispkg)
    found: dict[tuple[str, str], ModuleType] = {}
    for module in map(_import, names):
        if not hasattr(module, "RESULT"):
            continue
        if obstacle := _obstacle(module, found):
            raise UserError(f"The figure in {module.__name__} {obstacle}.")
        found[module.RESULT, module.KIND] = module
    for value, module in load_all(GROUP).items():
        if obstacle := _obstacle(module, found):
            leave_out(entries(GROUP)[value], f"it {obstacle}")
        else:
            found[module.RESULT, module.KIND] = module
    return found


def _obstacle(module: Any, found: Mapping[tuple[str, str], ModuleType]) -> str:
    """Why a module cannot draw beside those that were found; nothing where it can."""
    drawn = (getattr(module, "RESULT", None), getattr(module, "KIND", None))
    if not all(isinstance(each, str) for each in drawn) or not callable(getattr(module, "plot", None)):
        return "needs RESULT and KIND, two texts, and plot(result, *, theme), in a module"
    if drawn in found:
        other = found[drawn].__name__
        return f"draws the same figure as {other}, KIND {drawn[1]!r} of a {drawn[0]}; give one another KIND"
    return ""
