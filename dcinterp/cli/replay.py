"""`dcinterp replay`: does a saved result come out again?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dcinterp.cli._outputs import print_json
from dcinterp.support.errors import UserError


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of a saved result.")],
    tolerance: Annotated[
        float,
        typer.Option(help="Largest difference that counts as the same, as a share of a tensor's largest entry."),
    ] = 1e-4,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print JSON: same, differences, changed, weights_changed, intervals_changed, command."
        ),
    ] = False,
) -> None:
    """Make a saved result again from its own record, and compare the numbers.

    Exit code 1 if they differ.

    Examples:

        dcinterp analyze predict dcformer++ --save saved \\
            --prompt "There are tea, meat, meat. Which is not meat? The"

        dcinterp replay saved
    """
    from dcinterp.results.replay import replay
    from dcinterp.support.progress import console

    if not tolerance >= 0:
        raise UserError(f"--tolerance is {tolerance}; it must be at least 0.")
    with console("replay") as progress:
        report = replay(folder, tolerance=tolerance, progress=progress)
    assert report.saved.call is not None
    if as_json:
        record = {
            "same": report.same,
            "differences": dict(report.differences),
            "changed": list(report.changed),
            "weights_changed": report.weights_changed,
            "intervals_changed": report.intervals_changed,
            "command": report.saved.call.command(),
        }
        print_json(record)
    else:
        typer.echo(report.saved.call.command())
        if report.weights_changed:
            typer.echo("The model's weights are not those that the result was made with.")
        if report.intervals_changed:
            typer.echo("Its intervals were made by an earlier method, and are not compared.")
        if report.differences:
            typer.echo("The largest difference of each tensor, as a share of its largest entry:")
        for name, difference in report.differences.items():
            typer.echo(f"{name}: {difference:.1e}")
        for name in report.changed:
            typer.echo(f"{name}: changed")
        outcome = "comes out again" if report.same else "comes out DIFFERENT"
        typer.echo(f"{folder} {outcome} (allowed {tolerance:.1e})")
    if not report.same:
        raise typer.Exit(1)
