"""The command line: thin verbs over the library. A verb is one file here that defines `app` or `command`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pkgutil import iter_modules

import typer

# Not named `app`: importing the verb of that name would put its module in the name's place.
verbs = typer.Typer(
    name="dcinterp",
    help="Look inside DCFormer, the transformer whose attention heads are composed on the fly.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

for _module in sorted(iter_modules(__path__), key=lambda module: module.name):
    _verb = import_module(f"{__name__}.{_module.name}")
    if hasattr(_verb, "app"):
        verbs.add_typer(_verb.app, name=_module.name)
    else:
        verbs.command(_module.name.replace("_", "-"))(_verb.command)


def main() -> None:
    """Run the command line; bad input ends with one sentence and exit code 2, Ctrl-C with 130."""
    try:
        verbs()
    except (ValueError, OSError) as error:
        if os.environ.get("DCINTERP_DEBUG"):
            raise
        print(f"dcinterp: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("dcinterp: stopped", file=sys.stderr)
        sys.exit(130)
