"""`dcinterp bench`: measure ours against the alternatives, side by side in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcinterp.cli._help import Verbs
from dcinterp.cli._models import preset_names
from dcinterp.cli._options import require_apart
from dcinterp.cli._outputs import print_json, require_file_place
from dcinterp.cli._screen import print_table
from dcinterp.support.errors import UserError
from dcinterp.support.whole_files import whole

if TYPE_CHECKING:
    from dcinterp.bench.load import LoadMeasurement
    from dcinterp.bench.timing import Measurement

app = Verbs()


@app.callback()
def choose() -> None:
    """Measure ours against the alternatives, side by side in one run.

    Times are medians over rounds that take turns; "x first" divides by the first row. Keep the machine idle meanwhile.

    Example:

        dcinterp bench attention --short --rounds 3
    """


Rounds = Annotated[int, typer.Option(min=1, help="Repeats of every candidate; the median counts.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of torch; 0 leaves its own choice.")]
Output = Annotated[Path | None, typer.Option(help="Also write the numbers as JSON to this file.", metavar="FILE")]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print JSON: per measurement its label, and per candidate seconds, ratio and bytes."),
]


@app.command()
def attention(
    ctx: typer.Context,
    rounds: Rounds = 7,
    threads: Threads = 0,
    short: Annotated[bool, typer.Option("--short", help="Only the two smaller shapes; seconds.")] = False,
    long: Annotated[bool, typer.Option("--long", help="Only 8192 tokens, for the memory; minutes.")] = False,
    output: Output = None,
    as_json: JsonOption = False,
) -> None:
    """Composed attention against plain attention, forward and with backward.

    Examples:

        dcinterp bench attention --short --rounds 3

        dcinterp bench attention --rounds 15 --threads 2 --output bench.json
    """
    require_apart(ctx, "short", "long")
    from dcinterp.bench.attention import LONG, SHAPES, measure

    shapes = (LONG,) if long else SHAPES[1:3] if short else SHAPES
    jobs = [partial(measure, shape, backward=backward, rounds=rounds) for shape in shapes for backward in (False, True)]
    _run(jobs, threads, output, as_json)


Fast = Annotated[bool, typer.Option("--fast", help="Only the fused kernel, not the slower implementations.")]


@app.command()
def train(
    rounds: Rounds = 5, threads: Threads = 0, fast: Fast = False, output: Output = None, as_json: JsonOption = False
) -> None:
    """A training step of a DCFormer++ against a Transformer++ of the same shape, and against Llama.

    Example:

        dcinterp bench train --threads 2 --fast
    """
    _race_models("training step", rounds, threads, fast, output, as_json)


@app.command()
def prefill(
    rounds: Rounds = 5, threads: Threads = 0, fast: Fast = False, output: Output = None, as_json: JsonOption = False
) -> None:
    """Reading a prompt into the cache: a DCFormer++ against a Transformer++ of the same shape, and against Llama.

    Example:

        dcinterp bench prefill --threads 2 --fast
    """
    _race_models("prefill", rounds, threads, fast, output, as_json)


@app.command()
def decode(
    rounds: Rounds = 5, threads: Threads = 0, fast: Fast = False, output: Output = None, as_json: JsonOption = False
) -> None:
    """Decoding with the cache: a DCFormer++ against a Transformer++ of the same shape, and against Llama.

    Example:

        dcinterp bench decode --threads 2 --fast
    """
    _race_models("decoding", rounds, threads, fast, output, as_json)


@app.command("all")
def everything(
    rounds: Rounds = 7,
    threads: Annotated[
        list[int] | None, typer.Option(min=1, help="Threads of torch; give it again for another measurement.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this: attention, training step, prefill or decoding.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--json", "--output", metavar="FILE", help="Write the numbers here; those of a run cut short are kept."
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write the tables into this page, between its marks.", metavar="FILE")
    ] = None,
    read: Annotated[bool, typer.Option("--read", help="Measure nothing; print what the file holds.")] = False,
) -> None:
    """Attention, training, prompts and decoding, as tables of ratios; docs/kernel.md shows such a run.

    A measurement that the file has already, by the same rounds, is not made again.

    Examples:

        dcinterp bench all --threads 1 --threads 2 --json bench.json

        dcinterp bench all --read --json bench.json --page page.md
    """
    from dcinterp.bench.record import KINDS, measure_all, page_tables, read_page, read_record, write_page
    from dcinterp.support.errors import UserError, require_known
    from dcinterp.support.progress import console

    require_file_place(output)
    for kind in only or ():
        require_known("kind of measurement", kind, KINDS)
    if page is not None:
        read_page(page)  # before measurements that take an hour
    if read:
        if output is None:
            raise UserError("--read prints what a file holds; name it with --json FILE.")
        record = read_record(output)
    else:
        with console("bench") as progress:
            record = measure_all(output, rounds=rounds, threads=threads, only=only or KINDS, progress=progress)
    if page is not None:
        write_page(page, record)
    typer.echo(page_tables(record))


@app.command()
def edges(
    rows: Annotated[
        Path, typer.Argument(help="File of the measurements, a line a prompt; what it holds is not measured again.")
    ],
    families: Annotated[
        list[str] | None, typer.Argument(help="Families of tasks, or planted circuits; all by default.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of every family of tasks.")] = 100,
    seconds: Annotated[float, typer.Option(min=0, help="Stop after so long; 0 only reads what is there.")] = 200.0,
    write: Annotated[
        bool, typer.Option("--write", help="Make these the numbers of the package, which the app and docs show.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: by family and stage, the numbers of rules.")
    ] = False,
) -> None:
    """How well scores of edges predict their measured removals, on the shipped model and on planted circuits.

    Every edge of every prompt is removed, alone. Give the command again until no more rows are made.

    Examples:

        dcinterp bench edges rows.jsonl same-person --prompts 12

        dcinterp bench edges rows.jsonl --seconds 0
    """
    import json
    import time

    from dcinterp.bench.edges import FAMILIES, NEEDED, measure, planted_cases, summarise, trained_cases
    from dcinterp.bench.row_file import read_rows
    from dcinterp.checkpoints.load import load
    from dcinterp.mechanism import edge_benchmark
    from dcinterp.planted import together
    from dcinterp.support.errors import require_known

    require_file_place(rows)
    until, known = time.monotonic() + seconds, (*FAMILIES, *together())
    for family in families or ():
        require_known("family", family, known)
    for family in families or known if seconds else ():
        model = load(edge_benchmark.MODEL) if family in FAMILIES else None
        cases = planted_cases(family) if model is None else trained_cases(model, family, prompts)
        made = measure(cases, rows, until=until)
        typer.echo(f"{family}: {made} more rows", err=True)
    if not (measured := read_rows(rows, NEEDED)):
        raise UserError(f"There are no measurements in {rows}; give a file that has some, or more --seconds.")
    found = summarise(measured)
    if write:
        with whole(edge_benchmark.FILE) as place:
            place.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        edge_benchmark.summary.cache_clear()
    if as_json:
        print_json(found)
        return
    for name, of in found.items():
        for rule, numbers in of["rules"].items():
            typer.echo(f"{name:24} {rule:18} {numbers['all']}")


@app.command()
def circuits(
    ctx: typer.Context,
    rows: Annotated[
        Path, typer.Argument(help="File of the measurements, a line a task; what it holds is not measured again.")
    ],
    tasks: Annotated[str, typer.Option(help="Tasks, as in `dcinterp tasks`; all by default.")] = "all",
    models: Annotated[list[str] | None, typer.Option("--model", help="Models; both shipped ones by default.")] = None,
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="Ways of scoring edges; the first also makes the node ranking.")
    ] = None,
    planted: Annotated[
        bool, typer.Option("--planted", help="Measure planted circuits instead: AUROC of their known edges.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0, help="Stop after so long; 0 only reads what is there.")] = 200.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: by model and ranking, the numbers.")] = False,
) -> None:
    """How faithful circuits are: CMD and CPR of m, answer minus counterfactual's answer, by ranking of the edges.

    Edges outside a circuit are patched from counterfactual prompts. Give the command again until no more rows are made.

    Examples:

        dcinterp bench circuits rows.jsonl --tasks task0 --model dcformer++

        dcinterp bench circuits rows.jsonl --seconds 0
    """
    require_apart(ctx, "planted", "tasks", "models")
    import time

    from dcinterp.bench.circuits import FAST, MODELS, NEEDED, PLANTED, measure_planted, measure_tasks, summarise
    from dcinterp.bench.row_file import read_rows
    from dcinterp.mechanism.circuit_scores import METHODS
    from dcinterp.support.errors import UserError, require_known
    from synthetic_tasks.selection import chosen

    require_file_place(rows)
    for method in methods or ():
        require_known("method", method, METHODS)
    until = time.monotonic() + seconds
    names = [task.id for task in chosen("" if tasks == "all" else tasks)]
    if not seconds and not rows.is_file():
        raise UserError(f"There is no file {rows} to read; without --seconds 0 it is made.")
    if not seconds:
        made = 0
    elif planted:
        made = measure_planted(PLANTED, rows, methods=methods or tuple(METHODS), until=until)
    else:
        made = measure_tasks(models or MODELS, names, rows, methods=methods or FAST, until=until)
    typer.echo(f"{made} more rows", err=True)
    found = summarise(read_rows(rows, NEEDED))
    if not found:
        raise UserError(f"There are no measurements in {rows} yet; give it more --seconds, or another file.")
    if as_json:
        print_json(found)
        return
    for name, of in found.items():
        for ranking, numbers in of.items():
            typer.echo(f"{name:16} {ranking:16} {numbers}")


def _race_models(kind: str, rounds: int, threads: int, fast: bool, output: Path | None, as_json: bool) -> None:
    from dcinterp.bench.models import jobs

    _run(jobs(kind, rounds=rounds, slow=not fast), threads, output, as_json)


def _run(jobs: Sequence[Callable[..., Measurement]], threads: int, output: Path | None, as_json: bool) -> None:
    import json

    import torch
    from rich.table import Table

    from dcinterp.support.progress import console

    require_file_place(output)
    if threads:
        torch.set_num_threads(threads)
    records = []
    for job in jobs:
        with console("bench") as progress:
            result = job(progress=progress)
        table = Table(f"{result.label}, {result.what}", "median ms", "x first", "fastest ms", "peak MB")
        for t in result.timings:
            peak = "" if t.peak is None else f"{t.peak / 1e6:.0f}"
            table.add_row(t.name, f"{t.seconds * 1e3:.2f}", f"{t.ratio:.2f}", f"{t.fastest * 1e3:.2f}", peak)
        if not as_json:
            print_table(table)
        records.append(result.record())
        if output is not None:
            with whole(output) as place:
                place.write_text(json.dumps(records, indent=1), encoding="utf-8")
    if as_json:
        print_json(records)


@app.command()
def load(
    ctx: typer.Context,
    preset: Annotated[
        str, typer.Option(help="Shape of a random bfloat16 checkpoint.", autocompletion=preset_names)
    ] = "dcformer++-2.8b",
    folder: Annotated[
        Path | None, typer.Option(help="Measure the checkpoint in this folder instead.", metavar="FOLDER")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: checkpoint, seconds, and bytes at the peak and of the tensors.")
    ] = False,
) -> None:
    """Loading a released checkpoint: seconds, and peak memory against the size of its tensors.

    Example:

        dcinterp bench load --preset dcformer++-405m
    """
    require_apart(ctx, "folder", "preset")
    from tempfile import TemporaryDirectory

    from dcinterp.bench.load import measure_load, write_random
    from dcinterp.checkpoints.read import read_config_file
    from dcinterp.support.progress import console

    if folder is not None:
        read_config_file(folder)
        _say(str(folder), measure_load(folder), as_json)
        return
    with TemporaryDirectory() as scratch:
        with console("writing") as progress:
            write_random(preset, Path(scratch), progress=progress)
        _say(preset, measure_load(Path(scratch)), as_json)


def _say(name: str, measured: LoadMeasurement, as_json: bool) -> None:
    print_json({"checkpoint": name} | asdict(measured)) if as_json else typer.echo(f"{name}: {measured}")
