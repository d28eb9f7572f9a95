"""`dcinterp complexity`: the parameters and FLOPs of the composition, by formula and counted."""

from __future__ import annotations

from typing import Annotated

import typer

from dcinterp.cli._models import preset_names
from dcinterp.cli._outputs import print_json
from dcinterp.cli._screen import print_table
from dcinterp.support.text import markdown_table


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Named models, as `dcinterp presets` lists them; all composed ones by default.",
            metavar="PRESET",
            autocompletion=preset_names,
        ),
    ] = None,
    keys: Annotated[
        int | None, typer.Option(min=1, help="Positions that a query attends to; the model's context by default.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table, as in docs/models.md.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: per model the keys, and fractions instead of percent.")
    ] = False,
) -> None:
    """Print the extra parameters and FLOPs of composing heads, by the paper's formulas and counted.

    In percent of a block without composition. "counted" builds a block of the model and counts.

    Examples:

        dcinterp complexity

        dcinterp complexity dcformer++-405m --keys 8192

        dcinterp complexity --json
    """
    from rich.table import Table

    from dcinterp.model.complexity import overhead_records, overhead_rows
    from dcinterp.model.config import DCFormerConfig
    from dcinterp.model.presets import preset, presets
    from dcinterp.support.errors import UserError

    if markdown and as_json:
        raise UserError("--json leaves --markdown without a meaning; give one of the two.")
    chosen = [preset(name) for name in names] if names else list(presets().values())
    if plain := [each.name for each in chosen if names and not DCFormerConfig.preset(each.name).stages]:
        raise UserError(f"{plain[0]} composes no heads, so there is no extra cost; name a model that composes heads.")
    if as_json:
        print_json(overhead_records(chosen, keys))
        return
    rows = overhead_rows(chosen, keys)
    header = ("preset", "keys", "parameters", "counted", "FLOPs", "counted")
    if markdown:
        typer.echo(markdown_table(header, rows))
        return
    table = Table(box=None)
    for column in header:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    print_table(table)
    typer.echo("Extra parameters and FLOPs of a block, beside those it has without composition.")
