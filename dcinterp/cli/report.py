"""`dcinterp report`: write the report on the shipped pair again, or say whether it is out of date."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    document: Annotated[Path, typer.Argument(help="The Markdown file to write into, between its markers.")] = Path(
        "docs/what-composition-does.md"
    ),
    composed: Annotated[str, typer.Option(help="The composed model.")] = "dcformer++",
    plain: Annotated[str, typer.Option(help="Its plain twin.")] = "transformer++",
    rows: Annotated[int, typer.Option(min=1, help="Fresh rows of eight examples per task.")] = 2,
    stories: Annotated[int, typer.Option(min=1, help="Case studies.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the rows and examples.")] = 1,
    results: Annotated[
        Path | None, typer.Option(help="Keep results in this folder, and go on from what is there.", metavar="FOLDER")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether the weights are those of the document.")
    ] = False,
) -> None:
    """Measure what composition does in the shipped pair, and write the report on it again.

    For the repository. Exit code 2 if --check finds the report out of date.

    Examples:

        dcinterp report --check

        dcinterp report --results report-results
    """
    from dcinterp.errors import UserError
    from dcinterp.progress import console
    from dcinterp.report import measure, stale, write

    if not document.is_file():
        raise UserError(f"There is no {document}; give the report's document, or run this in the repository.")
    if check:
        if names := stale(document, composed, plain):
            raise UserError(f"{document} was not written from these weights of {' and '.join(names)}; run it again.")
        typer.echo(f"{document} was written from the weights of {composed} and {plain}.")
        return
    with console("measuring") as progress:
        report = measure(composed, plain, rows=rows, stories=stories, seed=seed, folder=results, progress=progress)
    changed = write(document, report)
    typer.echo(f"{document}: {', '.join(changed) if changed else 'nothing'} changed.")
