"""`dcinterp report`: where the report on the shipped models is written now."""

from __future__ import annotations

import typer


def command(ctx: typer.Context) -> None:
    """Say how the report on the shipped models is written: it has left the library.

    Examples:

        dcinterp report
    """
    from dcinterp.support.errors import UserError

    raise UserError("The report is written by the documentation's tools now; run `make report` in a clone.")
