"""`dcinterp complexity`: what the composition costs, by formula and counted."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Presets; all composed ones by default.")] = None,
    keys: Annotated[int | None, typer.Option(help="Keys per query; the model's context by default.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of docs/models.md.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print fractions, as JSON.")] = False,
) -> None:
    """Extra parameters and FLOPs of the composition, by the paper's formulas and counted on a block of each model.

    Examples:

        dcinterp complexity

        dcinterp complexity dcformer++-405m --keys 8192

        dcinterp complexity --json
    """
    import json

    from rich.console import Console
    from rich.table import Table

    from dcinterp.model.complexity import overhead_records, overhead_rows
    from dcinterp.model.presets import preset, presets

    chosen = [preset(name) for name in names] if names else list(presets().values())
    if as_json:
        typer.echo(json.dumps(overhead_records(chosen, keys), indent=1))
        return
    rows = overhead_rows(chosen, keys)
    header = ("preset", "keys", "parameters", "counted", "FLOPs", "counted")
    if markdown:
        typer.echo("\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)))
        return
    table = Table(box=None)
    for column in header:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    typer.echo("Extra parameters and FLOPs of a block, beside those it has without composition.")
