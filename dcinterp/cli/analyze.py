"""`dcinterp analyze`: every analysis as a command, with options made from its signature."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from dcinterp.analysis.registry import Analysis
    from dcinterp.analysis.result import Result

ROWS = 30
"""Rows of the table that the terminal shows; --csv has all."""


class Analyses(TyperGroup):
    """The commands of the group, looked up in the registry when they are needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        from dcinterp.analysis.registry import ANALYSES

        return [name.replace("_", "-") for name in ANALYSES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from dcinterp.analysis.registry import ANALYSES

        entry = ANALYSES[cmd_name.replace("-", "_")]
        single = typer.Typer(add_completion=False)
        single.command(cmd_name, help=help_text(entry), short_help=entry.title)(verb(entry))
        return typer.main.get_command(single)


app = typer.Typer(cls=Analyses, no_args_is_help=True)


@app.callback()
def choose() -> None:
    """Run an analysis, by name, on a model.

    Examples:

        dcinterp analyze predict dcformer++ --prompt "Which is not sweater? The" --answer elephant

        dcinterp analyze attribute-heads dcformer++ --prompt "..." --target elephant --foil sweater --save scores

        dcinterp analyze attribute-heads --help
    """


OUTPUTS: dict[str, Any] = {
    "save": Annotated[Path | None, typer.Option(help="Write the result to this folder.", metavar="FOLDER")],
    "figure": Annotated[
        Path | None, typer.Option(help="Write its figure to this .html, .png or .svg file.", metavar="FILE")
    ],
    "kind": Annotated[str, typer.Option(help="Another kind of figure of the same result.")],
    "csv": Annotated[Path | None, typer.Option(help="Write its table to this file.", metavar="FILE")],
    "as_json": Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")],
}
DEFAULTS = {"save": None, "figure": None, "kind": "", "csv": None, "as_json": False}


def help_text(entry: Analysis) -> str:
    """The summary, and an example."""
    required = [n for n, p in entry.parameters.items() if p.default is p.empty]
    options = "".join(f" --{name.replace('_', '-')} {_sample(name)}" for name in required)
    model = " dcformer++" if entry.takes_model else ""
    return f"{entry.summary}\n\nExample:\n\n    dcinterp analyze {entry.name.replace('_', '-')}{model}{options}"


def _sample(name: str) -> str:
    known = {"prompt": '"Which is not sweater? The"', "target": "elephant", "words": "violin,lime", "run": "dcformer++"}
    numbers = {"layer": "1", "head": "3", "query": "-1", "key": "4", "stage": "post"}
    return (known | numbers).get(name, "...")


def verb(entry: Analysis) -> Any:
    """A function with a signature that typer turns into the command of one analysis."""
    from dcinterp.analysis.options import parameter_types

    types, described = parameter_types(entry.function), _descriptions(entry.function.__doc__ or "")
    parameters = []

    def add(name: str, annotation: Any, default: Any) -> None:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))

    if entry.takes_model:
        add("model", Annotated[str, typer.Argument(help="Shipped model, folder or hub id.")], inspect.Parameter.empty)
        add("dtype", Annotated[str | None, typer.Option(help="Load weights as float32, float64 or bfloat16.")], None)
    for name, parameter in entry.parameters.items():
        add(f"arg_{name}", *_option(name, parameter, types[name], described.get(name, "")))
    for name, annotation in OUTPUTS.items():
        add(name, annotation, DEFAULTS[name])

    def run(**given: Any) -> None:
        _run(entry, given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _option(name: str, parameter: inspect.Parameter, annotation: Any, text: str) -> tuple[Any, Any]:
    """(annotation, default) of one option; its name is prefixed inside so that it cannot meet an output's."""
    from dcinterp.analysis.call import option_text, plain
    from dcinterp.analysis.options import members

    if choices := [str(c) for kind in members(annotation) if get_origin(kind) is Literal for c in get_args(kind)]:
        text = f"{text} [{'|'.join(choices)}]"
    flag = f"--{name.replace('_', '-')}"
    kinds = [each for each in members(annotation) if each is not type(None)]
    required = parameter.default is parameter.empty
    if kinds == [bool]:
        option = typer.Option(f"{flag}/--no-{flag[2:]}", help=text)
        return Annotated[bool, option], inspect.Parameter.empty if required else parameter.default
    if not required and parameter.default is not None:
        text = f"{text} [default: {option_text(plain(parameter.default), name)}]"
    option = typer.Option(flag, help=text, show_default=False)
    return (Annotated[str, option], inspect.Parameter.empty) if required else (Annotated[str | None, option], None)


def _descriptions(doc: str) -> dict[str, str]:
    """The texts of a docstring's Args section by parameter."""
    section = re.search(r"^ *Args:\n(.*?)(?=^\S|\n\n|\Z)", inspect.cleandoc(doc), flags=re.M | re.S)
    found: dict[str, str] = {}
    for names, text in re.findall(r"^ {4}([\w, ]+): (.*?)(?=^ {4}\S|\Z)", section[1] if section else "", re.M | re.S):
        for name in names.split(", "):
            found[name] = " ".join(text.split())
    return found


def _run(entry: Analysis, given: dict[str, Any]) -> None:
    import torch

    from dcinterp.analysis.options import parameter_types, parse
    from dcinterp.errors import UserError
    from dcinterp.loading import load
    from dcinterp.progress import console

    types, arguments = parameter_types(entry.function), {}
    for name in entry.parameters:
        value = given[f"arg_{name}"]
        if value is not None:
            arguments[name] = parse(name, types[name], value) if isinstance(value, str) else value
    figure, kind = given["figure"], given["kind"]
    if figure is not None and figure.suffix not in (".html", ".png", ".svg"):
        raise UserError(f"--figure writes .html, .png or .svg files, not {figure.name}.")
    bridges = []
    if entry.takes_model:
        dtype = getattr(torch, given["dtype"] or "", None) if given["dtype"] else None
        if given["dtype"] and not isinstance(dtype, torch.dtype):
            raise UserError(f"There is no dtype {given['dtype']!r}; choose float32, float64 or bfloat16.")
        bridges.append(load(given["model"], dtype=dtype))
    with console(entry.name) as progress:
        if "progress" in entry.signature.parameters:
            arguments["progress"] = progress
        result = entry.function(*bridges, **arguments)
    _write(result, given["save"], figure, kind, given["csv"])
    typer.echo(json.dumps(as_data(result), ensure_ascii=False)) if given["as_json"] else _show(entry, result)


def _write(result: Result, folder: Path | None, figure: Path | None, kind: str, csv: Path | None) -> None:
    if folder is not None:
        result.save(folder)
    if csv is not None:
        result.to_dataframe().to_csv(csv, index=False)
    if figure is not None:
        from dcinterp import figures
        from dcinterp.figures import export

        drawn = figures.plot(result, kind=kind)
        data = export.html(drawn) if figure.suffix == ".html" else export.image(drawn, figure.suffix[1:])
        figure.write_bytes(data)


def as_data(result: Result) -> dict[str, Any]:
    """A result as JSON data: its fields, tensors as nested lists, what a reader must know, and how it was made."""
    from dataclasses import fields

    from torch import Tensor

    data: dict[str, Any] = {"kind": type(result).__name__}
    for name in [f.name for f in fields(result) if f.name != "call"]:
        value = getattr(result, name)
        nested = as_data(value) if hasattr(value, "to_dataframe") else value
        data[name] = value.tolist() if isinstance(value, Tensor) else nested
    return data | {"banners": result.banners(), "call": result.call.record() if result.call else None}


def _show(entry: Analysis, result: Result) -> None:
    from rich.console import Console
    from rich.table import Table

    screen = Console()
    if not screen.is_terminal:
        screen.width = max(screen.width, 160)
    screen.print(entry.title, style="bold", highlight=False)
    for sentence in result.banners():
        screen.print(f"! {sentence}", style="yellow", highlight=False, markup=False)
    frame = result.table()
    table = Table(box=None)
    for column in frame.columns:
        table.add_column(str(column), no_wrap=True)
    for row in frame.head(ROWS).itertuples(index=False):
        table.add_row(*(_cell(value) for value in row))
    screen.print(table)
    if len(frame) > ROWS:
        typer.echo(f"... and {len(frame) - ROWS} more rows; --csv FILE writes the whole table.")


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("[", "\\[")
