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
            raise UserError(f"{_flag(option)} leaves {_flag(other)} without a meaning; give one of the two.")


def _given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _flag(name: str) -> str:
    return f"--{name.removeprefix('only_').replace('_', '-')}"
