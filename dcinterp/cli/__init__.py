"""The command line: thin verbs over the library. A verb is one file here that defines `app` or `command`.

Exit codes: 0 done; 1 a check said no (`verify`, `replay`, `tasks solve`); 2 bad input, with one sentence; 130 Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated

import typer

# Not named `app`: importing the verb of that name would put its module in the name's place.
verbs = typer.Typer(
    name="dcinterp",
    help="Look inside DCFormer, the transformer whose attention heads are composed on the fly.",
    epilog="Exit codes: 0 done, 1 a check said no, 2 bad input, 130 stopped. DCINTERP_DEBUG=1 shows tracebacks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from dcinterp import __version__

        typer.echo(f"dcinterp {__version__}")
        raise typer.Exit


@verbs.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Look inside DCFormer, the transformer whose attention heads are composed on the fly.

    Examples:

        dcinterp app

        dcinterp load dcformer++

        dcinterp analyze --help
    """


for _module in sorted(iter_modules(__path__), key=lambda module: module.name):
    _verb = import_module(f"{__name__}.{_module.name}")
    if hasattr(_verb, "app"):
        verbs.add_typer(_verb.app, name=_module.name)
    else:
        verbs.command(_module.name.replace("_", "-"))(_verb.command)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input ends with one sentence and exit code 2, Ctrl-C with 130."""
    try:
        code = verbs(arguments, prog_name="dcinterp", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # what the parser makes of Ctrl-C
            _end("stopped", 130)
        sys.exit(code if isinstance(code, int) else 0)
    except BrokenPipeError:
        # Whoever read us (`| head`, say) has enough. Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if os.environ.get("DCINTERP_DEBUG"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.exit(2)  # making the error has shown the help
        if hasattr(error, "format_message"):  # an error of typer's parser, whose classes are not public
            _end(_usage(error), 2)
        if not isinstance(error, ValueError | OSError):
            raise
        _end(str(error), 2)


def _usage(error: Exception) -> str:
    """The parser's message, and where to read on."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "dcinterp"
    message = " ".join(error.format_message().split())  # type: ignore[attr-defined]
    return f"{message.rstrip('.')}; see {path} --help."


def _end(message: str, code: int) -> None:
    print(f"dcinterp: {message}", file=sys.stderr)
    sys.exit(code)
