"""`dcinterp sweep`: many runs from one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    file: Annotated[Path, typer.Argument(help="YAML file of the sweep; dcinterp/train/sweep.py says what it holds.")],
    jobs: Annotated[int | None, typer.Option(help="Runs at a time.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the runs and the table.")] = None,
    only_table: Annotated[bool, typer.Option("--table", help="Write the table of what is there; run nothing.")] = False,
) -> None:
    """Run a list or a grid of configs and write one table; finished runs are kept, stopped ones go on.

    Exit code 1 if a run failed; the others are run all the same.

    Example:

        dcinterp sweep configs/sweeps/ablation.yaml --jobs 2
    """
    from dcinterp.errors import UserError
    from dcinterp.progress import console
    from dcinterp.train.sweep import TABLE, read_sweep, results, run_sweep

    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs is {jobs}; it must be at least 1.")
    sweep = read_sweep(file, output=output)
    if only_table:
        sweep.output.mkdir(parents=True, exist_ok=True)
        table = results(sweep)
    else:
        with console("runs") as progress:
            table = run_sweep(sweep, jobs=jobs, progress=progress)
    shown = [c for c in ("name", "status", "tokens", "flops", "loss", "validation_loss") if c in table]
    typer.echo(table[shown].to_string(index=False, na_rep=""))
    typer.echo(f"Table: {sweep.output / TABLE}")
    failed = table[table["status"] == "failed"]
    for _, row in failed.iterrows():
        typer.echo(f"FAILED {row['name']}: {row['message']}", err=True)
    if len(failed):
        raise typer.Exit(1)
