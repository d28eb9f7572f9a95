"""`dcinterp sweep`: many runs from one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dcinterp.cli._engine import Engine
from dcinterp.cli._options import require_apart
from dcinterp.cli._outputs import print_json
from dcinterp.cli._training_progress import show_progress


def command(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="YAML file of the sweep; docs/training.md says what it holds.")],
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; what the file says, else one, by default.")
    ] = None,
    engine: Engine = "local",
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs and the table; what the file says by default.", metavar="FOLDER"),
    ] = None,
    only_table: Annotated[bool, typer.Option("--table", help="Write the table of what is there; run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole table as JSON: an object per run.")] = False,
) -> None:
    """Run a list or a grid of configs and write one table; finished runs are kept, stopped ones go on.

    Exit code 1 if a run failed; the others are run all the same.

    Example:

        dcinterp sweep configs/sweeps/ablation.yaml --jobs 2
    """
    require_apart(ctx, "only_table", "jobs", "engine")
    from dcinterp.train.control.sweep import TABLE, read_sweep, recorded_failures, results, run_sweep

    sweep = read_sweep(file, output=output)
    if only_table:
        sweep.output.mkdir(parents=True, exist_ok=True)
        table = results(sweep, recorded_failures(sweep))
    else:
        # Results go to standard output, which may be JSON.
        with show_progress("run", lines=sys.stderr) as progress:
            table = run_sweep(sweep, jobs=jobs, progress=progress, engine=engine)
    if as_json:
        print_json(table.astype(object).where(table.notna(), None).to_dict(orient="records"))
    shown = [c for c in ("name", "status", "tokens", "flops", "loss", "validation_loss") if c in table]
    if not as_json:
        typer.echo(table[shown].to_string(index=False, na_rep=""))
        typer.echo(f"Table: {sweep.output / TABLE}")
    failed = table[table["status"] == "failed"]
    for _, row in failed.iterrows():
        typer.echo(f"FAILED {row['name']}: {row['message']}", err=True)
    if len(failed):
        raise typer.Exit(1)
