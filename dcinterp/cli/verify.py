"""`dcinterp verify`: can this checkpoint be trusted?"""

from __future__ import annotations

from typing import Annotated

import typer

from dcinterp.cli._models import model_folder, model_names
from dcinterp.cli._outputs import print_json
from dcinterp.cli._screen import print_table


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="A folder, in our layout or a released one, or a shipped model.", autocompletion=model_names
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            help="Another folder of the same model; by default the plain reference in float64.", metavar="FOLDER"
        ),
    ] = None,
    length: Annotated[
        int, typer.Option(min=1, help="Tokens in each of the two random texts, at most the model's context.")
    ] = 48,
    seed: Annotated[int, typer.Option(help="Seed of the texts.")] = 0,
    tolerance: Annotated[
        float, typer.Option(help="Largest difference that agrees, as a share of the largest entry.")
    ] = 1e-4,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: against, agrees, largest, and the differences by layer.")
    ] = False,
) -> None:
    """Compare a model layer by layer with a slow reference written from the equations, or with another.

    Exit code 1 if a difference is above the tolerance.

    Examples:

        dcinterp verify dcformer++

        dcinterp convert dcformer++ released --to dcformer

        dcinterp verify released --against dcformer++
    """
    from rich.table import Table

    from dcinterp.checkpoints.verify import verify
    from dcinterp.support.errors import UserError

    if not tolerance >= 0:
        raise UserError(f"--tolerance is {tolerance}; it must be at least 0.")
    other = model_folder(against) if against is not None else None
    report = verify(model_folder(model), against=other, length=length, seed=seed)
    reference, agrees = against or report.against, report.largest <= tolerance
    if as_json:
        record = {"against": reference, "layers": report.layers, "whole": report.whole, "largest": report.largest}
        print_json(record | {"agrees": agrees})
        raise typer.Exit(int(not agrees))
    table = Table(box=None)
    for column in ("layer", "stream", *report.stage_names):
        table.add_column(column, no_wrap=True)
    for layer, row in enumerate(report.layers):
        table.add_row(str(layer), *(f"{row[name]:.1e}" for name in ("stream", *report.stage_names)))
    print_table(table)
    for name, difference in report.whole.items():
        typer.echo(f"{name}: {difference:.1e}")
    outcome = "agrees with" if agrees else "DIFFERS from"
    typer.echo(f"{model} {outcome} {reference}: largest difference {report.largest:.1e}, allowed {tolerance:.1e}")
    if not agrees:
        raise typer.Exit(1)
