"""Options that do not go together."""

from __future__ import annotations

import typer

from dcinterp.support.errors import UserError


def require_apart(ctx: typer.Context, option: str, *others: str) -> None:
    """Refuse options beside one that makes them meaningless: they would be ignored without a word.

    Args:
        ctx: of the command.
        option, others: names of its parameters.

    Raises:
        UserError: `option` was given, and one of the others too.
    """
    if not _given(ctx, option):
        return
    for other in others:
        if _given(ctx, other):
            raise UserError(f"{_flag(ctx, option)} leaves {_flag(ctx, other)} without a meaning; give one of the two.")


def _given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _flag(ctx: typer.Context, name: str) -> str:
    """How a parameter is written on the command line."""
    return next(str(parameter.opts[0]) for parameter in ctx.command.params if parameter.name == name)
