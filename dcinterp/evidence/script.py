"""How a script of an experiment is run: by its options, and with one sentence where it meets what a person can mend."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from dcinterp.support.errors import UserError


def run_script(main: Callable[..., Any]) -> None:
    """Run a script's `main` by the options of the command line; a `UserError` ends it with its sentence and code 2."""
    script = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    script.command()(main)
    try:
        script()
    except UserError as error:
        if os.environ.get("DCINTERP_DEBUG"):
            raise
        typer.echo(f"{Path(sys.argv[0]).name}: {error}", err=True)
        sys.exit(2)
