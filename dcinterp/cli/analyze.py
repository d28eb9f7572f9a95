"""`dcinterp analyze`: every analysis as a command, with options made from its signature."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from dcinterp.cli._help import Group, Verb, Verbs, example
from dcinterp.cli._models import MODEL, TOKENIZER
from dcinterp.cli._outputs import (
    print_result_json,
    require_different,
    require_figure_place,
    require_file_place,
    require_result_place,
    save_result,
    write_figure,
)
from dcinterp.cli._screen import cell, print_table, screen
from dcinterp.support.text import printable
from dcinterp.support.whole_files import whole

if TYPE_CHECKING:
    from dcinterp.results.registry import Analysis
    from dcinterp.results.result import Result
    from dcinterp.support.progress import Progress

ROWS = 30
"""Rows of the table that the terminal shows; --table-to FILE has all."""

LONG = 80
"""Characters; a column with longer texts is wrapped."""


class Analyses(Group):
    """The commands of the group: listed from the sources, made from the registry when one is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        from dcinterp.results.catalogue import GROUP, titles
        from dcinterp.support.extensions import entries

        return [name.replace("_", "-") for name in dict.fromkeys((*titles(), *entries(GROUP)))]

    def summary(self, ctx: Any, name: str) -> str:
        from dcinterp.results.catalogue import GROUP, titles
        from dcinterp.support.extensions import entries, package_of

        name = name.replace("-", "_")
        return titles()[name] if name in titles() else f"Added by {package_of(entries(GROUP)[name])}"

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from dcinterp.support.errors import require_known

        require_known("analysis", cmd_name.replace("_", "-"), self.list_commands(ctx))  # before torch is waited for
        from dcinterp.results.registry import ANALYSES

        entry = ANALYSES[cmd_name.replace("-", "_")]
        single = Verbs(add_completion=False)
        single.command(cmd_name, help=help_text(entry), short_help=entry.title, cls=AnalysisVerb)(verb(entry))
        return typer.main.get_command(single)


class AnalysisVerb(Verb):
    """The command of one analysis, whose help names the figures that there are of its result."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from dcinterp.results.registry import ANALYSES

        more = list(filter(None, figure_kinds(ANALYSES[str(self.name).replace("-", "_")])))
        kept = [option for option in self.params if option.name != "figure_kind" or more]
        for option in kept:
            if option.name == "figure_kind":
                option.help = f"Another figure of the same result: {', '.join(more)}."  # type: ignore[attr-defined]
        self.params = kept
        super().format_help(ctx, formatter)


app = Verbs(cls=Analyses)


@app.callback()
def choose() -> None:
    """Run an analysis, by name, on a model.

    The result is printed as a table; --save, --figure, --table-to, --csv and --json write it in other ways.

    Examples:

        dcinterp analyze predict dcformer++ \\
            --prompt "There are tea, meat, meat. Which is not meat? The"

        dcinterp analyze attribute-heads dcformer++ \\
            --prompt "There are tea, meat, meat. Which is not meat? The" \\
            --target tea --foil meat --save scores --figure scores.html

        dcinterp replay scores

        dcinterp analyze attribute-heads --help
    """


ENGINES: dict[str, Any] = {
    "engine": Annotated[
        str | None,
        typer.Option(
            help="Give the examples to the workers of a Dask cluster: dask for one on this machine, "
            "dask:tcp://HOST:8786 or dask:FILE.json for one that runs.",
            metavar="dask[:ADDRESS]",
        ),
    ],
    "jobs": Annotated[
        int | None, typer.Option(help="Workers of a Dask cluster on this machine; 2 by default.", min=1, metavar="N")
    ],
}

OUTPUTS: dict[str, Any] = {
    "save": Annotated[
        Path | None,
        typer.Option(
            help="Write the result to this folder, also over an earlier one of the same kind; `dcinterp replay` makes "
            "it again.",
            metavar="FOLDER",
        ),
    ],
    "figure": Annotated[
        Path | None, typer.Option(help="Write its figure to this .html, .png or .svg file.", metavar="FILE")
    ],
    "figure_kind": Annotated[str, typer.Option(help="Another figure of the same result.", metavar="NAME")],
    "table_to": Annotated[
        Path | None,
        typer.Option(help="Write the table that is printed, all its rows, to this CSV file.", metavar="FILE"),
    ],
    "csv": Annotated[
        Path | None, typer.Option(help="Write every number, one row an entry, to this CSV file.", metavar="FILE")
    ],
    "as_json": Annotated[
        bool,
        typer.Option("--json", help="Print the result as one JSON document: kind, fields, warnings, call."),
    ],
}
DEFAULTS = {"save": None, "figure": None, "figure_kind": "", "table_to": None, "csv": None, "as_json": False}


def help_text(entry: Analysis) -> str:
    """The summary, and the example of the declaration."""
    options = [_words(_flag(name), text) for name, text in entry.example.items()]
    words = [f"dcinterp analyze {entry.name.replace('_', '-')}", *["dcformer++"] * entry.takes_model, *options]
    return f"{entry.summary}\n\nExample:\n\n{example(words)}"


def _words(option: str, text: str) -> str:
    """An option and its value as one types them; a value that begins with a dash would be taken for an option."""
    if text.startswith("-"):
        return f"{option}={text}"
    quoted = f'"{text}"' if shlex.quote(text) != text and not set(text) & set('"$`\\!') else shlex.quote(text)
    return f"{option} {quoted}"


def figure_kinds(entry: Analysis) -> list[str]:
    """The figures of an analysis' result, by kind; the one that it gets when nobody asks for another is ""."""
    from dcinterp.figures import kinds

    return sorted(kind for result, kind in kinds() if result == entry.kind)


def verb(entry: Analysis) -> Any:
    """A function with a signature that typer turns into the command of one analysis."""
    from dcinterp.results.options import parameter_types

    types, described = parameter_types(entry.function), _descriptions(entry.function.__doc__ or "")
    parameters = []

    def add(name: str, annotation: Any, default: Any) -> None:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))

    if entry.takes_model:
        add("model", Annotated[str, MODEL], inspect.Parameter.empty)
    for name, parameter in entry.parameters.items():
        add(f"arg_{name}", *_option(name, parameter, types[name], described.get(name, "")))
    for name in _unrecorded(entry):
        parameter = entry.signature.parameters[name]
        add(f"arg_{name}", *_option(name, parameter, types[name], described.get(name, "")))
    if entry.takes_model:
        dtype = typer.Option(help="Load the weights as this type of numbers; as stored by default.")
        add("dtype", Annotated[Literal["float32", "float64", "bfloat16", "float16"] | None, dtype], None)
        add("tokenizer", Annotated[str | None, TOKENIZER], None)
        device = typer.Option(help="Where to compute, as in cuda or cuda:1; the CPU by default.")
        add("device", Annotated[str | None, device], None)
    for name, annotation in (ENGINES if entry.in_units else {}).items():
        add(name, annotation, None)
    for name, annotation in OUTPUTS.items():
        add(name, annotation, DEFAULTS[name])
    for old, new in former_options(entry).items():
        option = typer.Option(_flag(old), help=f"The former name of {_flag(new)}.", hidden=True)
        add(f"former_{old}", Annotated[str | None, option], None)

    def run(**given: Any) -> None:
        _run(entry, given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _unrecorded(entry: Analysis) -> list[str]:
    """Parameters that a person may type and that do not change the result, such as the rows of a pass."""
    from dcinterp.results.options import members, parameter_types

    types = parameter_types(entry.function)
    return [name for name in entry.ignored if name in types and set(members(types[name])) <= {int, float, str, bool}]


def former_options(entry: Analysis) -> dict[str, str]:
    """Options that were renamed, and their names now."""
    return {old: new for old, new in entry.former.items() if "=" not in old}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _current(entry: Analysis, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments that were given, under their names and words of this version, with a note for every former one."""
    from dcinterp.support.former_names import GOES, renamed

    names = (*entry.parameters, *_unrecorded(entry))
    arguments = {name: given[f"arg_{name}"] for name in names if given[f"arg_{name}"] is not None}
    for old, new in former_options(entry).items():
        if given[f"former_{old}"] is not None:
            typer.echo(f"dcinterp: note: {_flag(old)} is called {_flag(new)} now; {GOES}.", err=True)
            arguments.setdefault(new, given[f"former_{old}"])
    current = renamed(arguments, entry.former)
    for name, value in current.items():
        if value != arguments[name]:
            typer.echo(f"dcinterp: note: {_flag(name)} {arguments[name]} is called {value} now; {GOES}.", err=True)
    return current


def _option(name: str, parameter: inspect.Parameter, annotation: Any, text: str) -> tuple[Any, Any]:
    """(annotation, default) of one option; its name is prefixed inside so that it cannot meet an output's."""
    from dcinterp.results.call import TOKEN_ARGUMENTS, option_text, plain
    from dcinterp.results.options import members

    flag, text = _flag(name), f"{text[:1].upper()}{text[1:]}"
    kinds = [each for each in members(annotation) if each is not type(None)]
    if name in TOKEN_ARGUMENTS and int in kinds:
        text += " A token id is written #12."
    required = parameter.default is parameter.empty
    if kinds == [bool]:
        option = typer.Option(f"{flag}/--no-{flag[2:]}", help=text)
        return Annotated[bool, option], inspect.Parameter.empty if required else parameter.default
    default = None if required else plain(parameter.default)
    # The default is shown and not given: the function has its own.
    shown = option_text(default, name) if default not in (None, "", [], ()) else False
    option = typer.Option(flag, help=text, show_default=shown, metavar=_metavar(kinds))
    return (Annotated[str, option], inspect.Parameter.empty) if required else (Annotated[str | None, option], None)


WIDEST_CHOICES = 56
"""Characters of a list of words that stands behind an option; a longer one is in the option's description."""


def _metavar(kinds: list[Any]) -> str:
    """What stands for the value of an option of these types."""
    choices = [str(c) for kind in kinds if get_origin(kind) is Literal for c in get_args(kind)]
    if choices:
        joined = "|".join(choices)
        return joined if len(joined) <= WIDEST_CHOICES else "NAME"
    if str in kinds:
        return "TEXT"
    if kinds in ([int], [float]):
        return "N" if kinds == [int] else "X"
    return "A,B,..."


def _descriptions(doc: str) -> dict[str, str]:
    """The texts of a docstring's Args section by parameter."""
    section = re.search(r"^ *Args:\n(.*?)(?=^\S|\n\n|\Z)", inspect.cleandoc(doc), flags=re.M | re.S)
    found: dict[str, str] = {}
    for names, text in re.findall(r"^ {4}([\w, ]+): (.*?)(?=^ {4}\S|\Z)", section[1] if section else "", re.M | re.S):
        for name in names.split(", "):
            found[name] = " ".join(text.split())
    return found


def _run(entry: Analysis, given: dict[str, Any]) -> None:
    from dcinterp.results.options import parameter_types, parse
    from dcinterp.support.progress import console

    _require_outputs(entry, given)
    types, arguments = parameter_types(entry.function), {}
    for name, value in _current(entry, given).items():
        arguments[name] = parse(name, types[name], value) if isinstance(value, str) else value
    _require_unread(arguments, given)
    require_file_place(given["csv"], only=".csv")
    with console(entry.name.replace("_", "-")) as progress:
        run = _here if given.get("engine") is None else _on_cluster
        result = run(entry, given, arguments, progress)
    _write(result, given)
    print_result_json(result) if given["as_json"] else _show(entry, result)


def _here(entry: Analysis, given: dict[str, Any], arguments: dict[str, Any], progress: Progress) -> Result:
    import torch

    bridges = []
    if entry.takes_model:
        progress(0, 0, f"loading {given['model']}")
        from dcinterp.checkpoints.load import load

        dtype = getattr(torch, given["dtype"]) if given["dtype"] else None
        bridges.append(load(given["model"], dtype=dtype, tokenizer=given["tokenizer"], device=given["device"]))
        progress(0, 0)
    if "progress" in entry.signature.parameters:
        arguments["progress"] = progress
    return entry.function(*bridges, **arguments)


def _on_cluster(entry: Analysis, given: dict[str, Any], arguments: dict[str, Any], progress: Progress) -> Result:
    from dcinterp.results.on_cluster import Work, analyse_on

    work = Work(entry.name, given["model"], arguments, given["dtype"], given["tokenizer"])
    return analyse_on(given["engine"], work, jobs=given["jobs"], progress=progress)


def _require_outputs(entry: Analysis, given: dict[str, Any]) -> None:
    """Refuse what could not be written before anything is computed."""
    from dcinterp.support.errors import UserError, nearest

    if given.get("jobs") is not None and given.get("engine") is None:
        raise UserError("--jobs is the number of workers of --engine dask; give that too.")
    if given.get("engine") is not None and given.get("device") is not None:
        raise UserError("Workers of an engine compute on their CPUs; leave --device or --engine out.")
    figure, kind = given["figure"], given["figure_kind"]
    require_figure_place(figure)
    if figure is not None and not figure_kinds(entry):
        raise UserError(f"There is no figure of {entry.title.lower()}; use --save or --json, or `dcinterp app`.")
    if kind and figure is None:
        raise UserError(f"--figure-kind {kind} chooses the figure that --figure FILE writes; give that too.")
    if kind and kind not in (known := figure_kinds(entry)):
        hint = nearest(kind, filter(None, known)) if any(known) else "leave --figure-kind out."
        raise UserError(f"There is no figure {kind!r} of this result; {hint}")
    require_different(figure, given["save"], given["table_to"], given["csv"])
    require_result_place(given["save"], entry.kind)
    for name in ("table_to", "csv"):
        require_file_place(given[name])


MODEL_FILES = (".json", ".safetensors", ".model", ".txt", ".jinja")
"""Endings of the files of a model and its tokenizer."""


def _require_unread(arguments: dict[str, Any], given: dict[str, Any]) -> None:
    """Refuse an output that would take the place of what is read: a file, or one inside a folder."""
    from dcinterp.support.errors import UserError
    from dcinterp.support.paths import path_of

    outputs = [path_of(given[name]) for name in ("figure", "save", "table_to", "csv") if given[name] is not None]
    outputs = [place.resolve() for place in outputs if place.exists()]
    values = [each for value in arguments.values() for each in (value if isinstance(value, list | tuple) else [value])]
    models = [given[name] for name in ("model", "tokenizer") if given.get(name)]
    for value in [*values, *models] if outputs else ():
        if not isinstance(value, str | Path):
            continue
        try:
            read = path_of(value).resolve()
            there = read.exists()
        except (UserError, OSError, ValueError):  # a prompt, which is no path
            continue
        inside = [place for place in outputs if there and read in place.parents]
        if value in models:  # of the files beside a model its own alone are read
            inside = [place for place in inside if place.suffix in MODEL_FILES]
        if found := [*(place for place in outputs if there and place == read), *inside]:
            raise UserError(f"{found[0]} is read; give the output another path.")


def _write(result: Result, given: dict[str, Any]) -> None:
    from synthetic_tasks.csv_text import write_csv

    save_result(result, given["save"])
    for name, make in (("table_to", result.table), ("csv", result.to_dataframe)):
        if given[name] is not None:
            with whole(given[name]) as place:
                write_csv(make(), place)
    write_figure(result, given["figure"], given["figure_kind"])


def _show(entry: Analysis, result: Result) -> None:
    from rich.table import Table

    console = screen()
    console.print(entry.title, style="bold", highlight=False)
    for sentence in result.warnings():
        console.print(printable(f"! {sentence}"), style="yellow", highlight=False, markup=False)
    for sentence in result.sentences():
        console.print(printable(sentence), highlight=False, markup=False)
    frame = result.table()
    table = Table(box=None)
    for column in frame.columns:
        # Sentences are wrapped; numbers and names stay in one piece.
        sentences = frame[column].astype(str).str.len().max() > LONG
        table.add_column(str(column), no_wrap=not sentences)
    for row in frame.head(ROWS).itertuples(index=False):
        table.add_row(*(cell(value) for value in row))
    print_table(table)
    if len(frame) > ROWS:
        typer.echo(f"... and {len(frame) - ROWS} more rows; --table-to FILE writes them all.")
