"""Which ways of composing there are: a scan of this folder finds every file with a `Composer`; packages add others."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from dcinterp.model.compose import __path__ as folder
from dcinterp.model.compose.base import ComposeConfig, Composer
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.extensions import OF_ANOTHER, Classes

NOT_COMPOSED = "none"
"""The `compose` of a plain transformer, whose heads work independently."""


def _scan() -> dict[str, type[Composer]]:
    package = __name__.rpartition(".")[0]
    found: dict[str, type[Composer]] = {}
    for name in (f"{package}.{module.name}" for module in iter_modules(folder)):
        if name == __name__:
            continue
        for each in vars(import_module(name)).values():
            if isinstance(each, type) and issubclass(each, Composer) and each.__module__ == name and each.name:
                assert each.name not in found, f"two composers are called {each.name!r}"
                found[each.name] = each
    return found


COMPOSERS: Classes[Composer] = Classes(_scan(), Composer, "composers", taken=(NOT_COMPOSED,))
"""Every way of composing by the name that the config's `compose` gives."""
COMPOSERS.look_for_clashes()  # now, as a model that was unpickled may be traced before anything else asks


def composer_class(name: str) -> type[Composer]:
    """The way of composing of this name.

    Raises:
        UserError: there is none; the message suggests one.
    """
    if name not in COMPOSERS:
        raise UserError(f"There is no way of composing heads called {name!r}; {nearest(name, COMPOSERS)} {OF_ANOTHER}")
    return COMPOSERS[name]


MECHANISM_COLUMNS = ("mechanism", "`compose`", "formula", "what M is", "released checkpoints", "analyses")


def mechanism_rows() -> list[tuple[str, ...]]:
    """(title, name, formula, what M is, released checkpoints, analyses) of every way of composing that has a row."""
    listed = [(each.MECHANISM, each) for each in COMPOSERS.that_load().values() if each.MECHANISM is not None]
    listed.sort(key=lambda pair: pair[0].title.lower())
    return [(m.title, each.name, m.formula, m.head_map, m.released, each.analyses()) for m, each in listed]


def check_composition(config: ComposeConfig) -> None:
    """Check the fields `compose` and `compose_options` of a config.

    Raises:
        UserError: there is no such way of composing, or it has no such option; the message names the field.
    """
    known = (*COMPOSERS, NOT_COMPOSED)
    if config.compose not in known:
        raise UserError(f"compose is {config.compose!r}; choose one of {', '.join(known)}. {OF_ANOTHER}")
    if config.compose != NOT_COMPOSED:
        composer = COMPOSERS[config.compose]
        composer.check(config)
        if config.compose_stages and not set(composer.STAGES) & set(config.compose_stages):
            raise UserError(
                f"compose={config.compose!r} works at the stage {' and '.join(map(repr, composer.STAGES))} only, and "
                f"compose_stages is {tuple(config.compose_stages)!r}; leave it out."
            )
    elif config.compose_options:
        option = next(iter(config.compose_options))
        raise UserError(f"compose_options has {option!r}, but compose={NOT_COMPOSED!r} has none; leave it out.")
