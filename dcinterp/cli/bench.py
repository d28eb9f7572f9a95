"""`dcinterp bench`: measure ours against the alternatives, side by side in one run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dcinterp.bench.timing import Measurement

app = typer.Typer(help="Measure ours against the alternatives, side by side in one run.", no_args_is_help=True)


@app.callback()
def choose() -> None:
    """Measure ours against the alternatives, side by side in one run."""


Rounds = Annotated[int, typer.Option(min=1, help="Repeats of every candidate; the median counts.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of torch; 0 leaves its own choice.")]
Output = Annotated[Path | None, typer.Option(help="Also write the numbers as JSON here.")]


@app.command()
def attention(
    rounds: Rounds = 7,
    threads: Threads = 0,
    short: Annotated[bool, typer.Option("--short", help="The two smaller shapes only.")] = False,
    long: Annotated[bool, typer.Option("--long", help="8192 tokens only, for the memory.")] = False,
    output: Output = None,
) -> None:
    """Composed attention against plain attention, forward and with backward.

    Example:

        dcinterp bench attention --rounds 15 --threads 2 --output bench.json
    """
    from dcinterp.bench.attention import LONG, SHAPES, measure

    shapes = (LONG,) if long else SHAPES[1:3] if short else SHAPES
    jobs = [partial(measure, shape, backward=backward, rounds=rounds) for shape in shapes for backward in (False, True)]
    _run(jobs, threads, output)


@app.command()
def train(rounds: Rounds = 5, threads: Threads = 0, output: Output = None) -> None:
    """A training step of a small DCFormer++ against its Transformer++ twin.

    Example:

        dcinterp bench train --threads 2
    """
    from dcinterp.bench.models import measure_training

    _run([partial(measure_training, *shape, rounds=rounds) for shape in ((16, 192), (2, 1024))], threads, output)


@app.command()
def decode(rounds: Rounds = 5, threads: Threads = 0, output: Output = None) -> None:
    """Decoding with the cache: a small DCFormer++ against its Transformer++ twin.

    Example:

        dcinterp bench decode --threads 2
    """
    from dcinterp.bench.models import measure_decoding

    _run([partial(measure_decoding, past, rounds=rounds) for past in (128, 1024)], threads, output)


def _run(jobs: Sequence[Callable[..., Measurement]], threads: int, output: Path | None) -> None:
    import torch
    from rich.console import Console
    from rich.table import Table

    from dcinterp.progress import console

    if threads:
        torch.set_num_threads(threads)
    # A log file has no width of its own; the table needs this much.
    screen = Console(width=None if sys.stdout.isatty() else 110)
    records = []
    for job in jobs:
        with console("bench") as progress:
            result = job(progress=progress)
        table = Table(f"{result.label}, {result.what}", "median ms", "x first", "fastest ms", "peak MB")
        for t in result.timings:
            peak = "" if t.peak is None else f"{t.peak / 1e6:.0f}"
            table.add_row(t.name, f"{t.seconds * 1e3:.2f}", f"{t.ratio:.2f}", f"{t.fastest * 1e3:.2f}", peak)
        screen.print(table)
        records.append(result.record())
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
