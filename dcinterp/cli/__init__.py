"""The command line: thin verbs over the library. A verb is one file here that defines `app` or `command`.

Exit codes: 0 done; 1 a check said no (`verify`, `replay`, `tasks solve`), or a run failed (`sweep`, `experiment run`);
2 bad input, with one sentence; 70 a mistake of ours, with one sentence; 130 Ctrl-C; 141 whoever read the output went
away. Results go to standard output, everything else (progress, notes, errors) to standard error.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import re
import sys
import warnings
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any

import typer

from dcinterp.cli._help import Verbs
from dcinterp.support.errors import UserError, file_sentence, reason, shortened
from dcinterp.support.text import printable, shown

# Not named `app`: importing the verb of that name would put its module in the name's place.
verbs = Verbs(
    name="dcinterp",
    epilog="Exit codes: 0 done, 1 a check said no or a run failed, 2 bad input, 70 a mistake of ours, 130 stopped, "
    "141 nobody reads the output. Results go to standard output, progress and errors to standard error. "
    "DCINTERP_DEBUG=1 shows the traceback behind an error; NO_COLOR=1 prints no colours.",
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
    if _module.name.startswith("_"):
        continue
    _verb = import_module(f"{__name__}.{_module.name}")
    if hasattr(_verb, "app"):
        verbs.add_typer(_verb.app, name=_module.name)
    else:
        verbs.command(_module.name.replace("_", "-"), **getattr(_verb, "SETTINGS", {}))(_verb.command)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input ends with one sentence and exit code 2, Ctrl-C with 130."""
    warnings.showwarning = _note
    # At its end Python looks for garbage among all that the libraries made, for seconds, just before all of it goes.
    atexit.register(gc.freeze)
    try:
        _require_text(sys.argv[1:] if arguments is None else arguments)
        _open_streams()
        code = verbs(arguments, prog_name="dcinterp", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # what the parser makes of Ctrl-C
            _end("stopped", 130)
        sys.exit(code if isinstance(code, int) else 0)
    except BrokenPipeError:
        _end_unread()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer ends with 1, which is what a failed check says
            _end_unread()
        raise
    except KeyboardInterrupt:
        _end("stopped", 130)
    except Exception as error:
        if os.environ.get("DCINTERP_DEBUG"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.ctx.get_help())  # type: ignore[attr-defined]
            sys.exit(2)
        if hasattr(error, "format_message"):  # an error of typer's parser, whose classes are not public
            _end(_usage(error), 2)
        if "Overflow when unpacking" in str(error) or isinstance(error, OverflowError):
            _end("One of the numbers is too large for this; give a smaller one.", 2)
        if isinstance(error, OSError):
            if error.errno == errno.ENOSPC:
                _silence()
            _end(file_sentence(error), 2)
        if isinstance(error, ValueError):
            _end(str(error), 2)
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}"):
            _end("This does not fit into the memory; give a smaller batch, a shorter text or a smaller model.", 2)
        _end(
            f"This went wrong inside dcinterp: {type(error).__name__}: {reason(error)}. DCINTERP_DEBUG=1 shows where; "
            "please report it with that.",
            70,
        )


OUT_OF_MEMORY = re.compile("OutOfMemoryError|can't allocate memory")
"""How torch says so, on a GPU and on a CPU."""

PARSER_WORDS = (
    (r"Input should be a valid integer, unable to parse string as an integer", "it takes a whole number"),
    (r"Input should be a valid number, unable to parse string as a number", "it takes a number"),
    (r"Input should be greater than or equal to (.+)", r"it must be at least \1"),
    (r"Input should be less than or equal to (.+)", r"it must be at most \1"),
    (r"Value error, ", ""),
)
"""What typer's parser says of a wrong value, and what we say."""


def _usage(error: Any) -> str:
    """The parser's message, and where to read on."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "dcinterp"
    message = " ".join(error.format_message().split())
    for theirs, ours in PARSER_WORDS:
        message = re.sub(theirs, ours, message)
    return f"{message.rstrip('.')}; see {path} --help."


def _open_streams() -> None:
    """Streams that whoever started us has closed lead nowhere; what a stream cannot spell is written out."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        # Where UTF-8 is spelt there is nothing to write out, and a stream of another kind may not be changed.
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="backslashreplace")


def _note(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """A warning as one line, without the line of code that raised it."""
    print(f"dcinterp: note: {' '.join(str(message).split())}", file=sys.stderr)


def _end_unread() -> None:
    """Whoever read us (`| head`, say) has enough."""
    _silence()
    sys.exit(141)


def _silence() -> None:
    """Standard output goes nowhere from now on: Python would complain once more when it closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]


def _require_text(arguments: list[str]) -> None:
    """Refuse arguments that are not UTF-8, which libraries meet deep inside.

    Raises:
        UserError: one is not.
    """
    for given in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in given):
            raise UserError(f"The argument {shown(given)} is not valid UTF-8; give it in that encoding.")


def _end(message: str, code: int) -> None:
    # Of the paragraphs that a library may write, the first says what is wrong.
    said = shortened(" ".join(printable(message).strip().split(chr(10) * 2)[0].split()))
    print(f"dcinterp: {said}", file=sys.stderr)
    sys.exit(code)
