"""`dcinterp verify`: may this checkpoint be trusted?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of a model, ours or in a released layout.")],
    against: Annotated[
        Path | None, typer.Option(help="Another folder of the same model; by default the plain reference in float64.")
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens in each of the two random texts.")] = 48,
    seed: Annotated[int, typer.Option(help="Seed of the texts.")] = 0,
    tolerance: Annotated[float, typer.Option(help="Largest difference, relative to the largest entry.")] = 1e-4,
    as_json: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
) -> None:
    """Compare a model layer by layer with a slow reference written from the equations, or with another checkpoint.

    Exit code 1 if a difference is above the tolerance.

    Examples:

        dcinterp verify runs/dcformer++

        dcinterp verify converted --against DCFormer-2.8B
    """
    import json

    from rich.console import Console
    from rich.table import Table

    from dcinterp.verification import verify

    report = verify(folder, against=against, length=length, seed=seed)
    if as_json:
        record = {"against": report.against, "layers": report.layers, "whole": report.whole, "largest": report.largest}
        typer.echo(json.dumps(record | {"agrees": report.largest <= tolerance}, indent=1))
        raise typer.Exit(int(report.largest > tolerance))
    table = Table(box=None)
    for column in ("layer", "stream", *report.stage_names):
        table.add_column(column, no_wrap=True)
    for layer, row in enumerate(report.layers):
        table.add_row(str(layer), *(f"{row[name]:.1e}" for name in ("stream", *report.stage_names)))
    console = Console()
    console.print(table)
    for name, difference in report.whole.items():
        console.print(f"{name}: {difference:.1e}", highlight=False)
    verdict = "agrees with" if report.largest <= tolerance else "DIFFERS from"
    typer.echo(f"{folder} {verdict} {report.against}: largest difference {report.largest:.1e}, allowed {tolerance:.1e}")
    if report.largest > tolerance:
        raise typer.Exit(1)
