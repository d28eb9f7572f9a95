"""`dcinterp bench`: measure ours against the alternatives, side by side in one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Measure ours against the alternatives, side by side in one run.", no_args_is_help=True)


@app.callback()
def choose() -> None:
    """Measure ours against the alternatives, side by side in one run."""


@app.command()
def attention(
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of every candidate; the median counts.")] = 7,
    threads: Annotated[int, typer.Option(min=0, help="Threads of torch; 0 leaves its own choice.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON here.")] = None,
) -> None:
    """Composed attention against plain attention, forward and with backward.

    Example:

        dcinterp bench attention --rounds 15 --output bench.json
    """
    import torch
    from rich.console import Console
    from rich.table import Table

    from dcinterp.bench.attention import SHAPES, measure
    from dcinterp.progress import console

    if threads:
        torch.set_num_threads(threads)
    table = Table("shape", "pass", "implementation", "median ms", "x plain")
    records = []
    with console("bench") as progress:
        for shape in SHAPES:
            for backward in (False, True):
                result = measure(shape, backward=backward, rounds=rounds, progress=progress)
                records.append(result.record())
                label = f"B{shape.batch} T{shape.tokens} H{shape.heads} d{shape.d_head}"
                for timing in result.timings:
                    table.add_row(
                        label,
                        "forward+backward" if backward else "forward",
                        timing.name,
                        f"{timing.seconds * 1e3:.2f}",
                        f"{timing.ratio:.1f}",
                    )
    Console().print(table)
    if output is not None:
        output.write_text(json.dumps(records, indent=1), encoding="utf-8")


@app.command()
def load(
    preset: Annotated[str, typer.Option(help="Shape of the random bfloat16 checkpoint.")] = "dcformer++-2.8b",
    folder: Annotated[Path | None, typer.Option(help="Measure this checkpoint instead.")] = None,
) -> None:
    """Loading a released checkpoint: seconds, and peak memory against the size of its tensors.

    Example:

        dcinterp bench load --preset dcformer++-405m
    """
    from tempfile import TemporaryDirectory

    from dcinterp.bench.load import measure_load, write_random
    from dcinterp.progress import console

    if folder is not None:
        typer.echo(f"{folder}: {measure_load(folder)}")
        return
    with TemporaryDirectory() as scratch:
        with console("writing") as progress:
            write_random(preset, Path(scratch), progress=progress)
        typer.echo(f"{preset}: {measure_load(Path(scratch))}")
