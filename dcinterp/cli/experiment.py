"""`dcinterp experiment`: several arms, tuned alike, over many seeds."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dcinterp.cli._engine import Engine
from dcinterp.cli._help import Verbs
from dcinterp.cli._outputs import print_results_json, require_different, require_file_place
from dcinterp.cli._training_progress import show_progress
from dcinterp.support.errors import UserError, require_known
from dcinterp.support.whole_files import whole

app = Verbs()

Folder = Annotated[Path, typer.Argument(help="Folder of the experiment, with its experiment.yaml.")]


@app.callback()
def choose() -> None:
    """Ask the same question of several arms: tune each by the same search, run many seeds, compare.

    An experiment is a folder with a protocol.md and an experiment.yaml; docs/experiments-how.md says what they hold.

    Example:

        dcinterp experiment show experiments/recombination
    """


@app.command()
def run(
    folder: Folder,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; one by default.")] = None,
    seeds: Annotated[
        str,
        typer.Option(
            help="Other seeds than the file's, such as 10-19 or 3,5; for its replication.csv by default those that it "
            "plans.",
            metavar="SEEDS",
        ),
    ] = "",
    table: Annotated[
        Path | None,
        typer.Option(help="Another table than the experiment's own, to repeat it from nothing.", metavar="FILE"),
    ] = None,
    keep_search: Annotated[
        bool,
        typer.Option("--keep-search", help="With --table: take what the search chose, instead of searching again."),
    ] = False,
    blind: Annotated[
        bool, typer.Option("--blind", help="Print no losses, where nothing may be read before all runs have ended.")
    ] = False,
    engine: Engine = "local",
) -> None:
    """Run what is not in the table yet, the search for the best values first; it goes on where it was stopped.

    Exit code 1 if a run failed; the others are run all the same.

    Example:

        dcinterp experiment run experiments/recombination --table again.csv --jobs 2
    """
    from dcinterp.train.control.experiment_file import read_experiment
    from dcinterp.train.control.run_experiment import RunsFailed, run_experiment
    from dcinterp.train.control.seeds import parse_seeds

    require_file_place(table)
    experiment = read_experiment(folder, table=table)
    typer.echo("Ctrl-C stops the runs at checkpoints; the same command goes on with them.", err=True)
    with show_progress("run", lines=sys.stderr) as progress:
        try:
            rows = run_experiment(
                experiment,
                jobs=jobs,
                seeds=parse_seeds(seeds),
                progress=progress,
                engine=engine,
                keep_search=keep_search,
                blind=blind,
            )
        except RunsFailed as failed:
            typer.echo(f"FAILED {failed}", err=True)
            raise typer.Exit(1) from None
    beside = f" --table {table}" if table else ""
    again = f"dcinterp experiment show {shlex.quote(str(folder))}{beside}"
    typer.echo(f"{len(rows)} runs are in {experiment.table}. To compare: {again}")


@app.command()
def check(folder: Folder) -> None:
    """Say what the runs would be, before the first: sizes of the arms, what they measure, how long they take here.

    Every arm is opened as its runs will be, up to the first step. Exit code 1 if something stands in the way.

    Example:

        dcinterp experiment check experiments/recombination
    """
    from dcinterp.checkpoints.composition import open_start
    from dcinterp.train.control.check_experiment import plan_experiment
    from dcinterp.train.control.experiment_file import read_experiment

    experiment = read_experiment(folder)
    with show_progress("arm", lines=sys.stderr) as progress:
        plan = plan_experiment(experiment, open_start, progress)
    typer.echo("\n".join(plan.lines()))
    if plan.problems:
        raise typer.Exit(1)


@app.command()
def show(
    folder: Folder,
    table: Annotated[Path | None, typer.Option(help="Another table than its own.", metavar="FILE")] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(help="Print its mean minus that of --baseline; of several, their mean."),
    ] = None,
    baseline: Annotated[list[str] | None, typer.Option(help="Of several, their mean.")] = None,
    level: Annotated[
        float | None, typer.Option(min=0.5, max=0.9999, help="Of the intervals of --arm minus --baseline; else 0.95.")
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(min=100, max=1_000_000, help="Of the bootstrap behind these intervals; else those of the table."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the comparison of each measure.")] = False,
) -> None:
    """Compare the arms, by every measure of the experiment, with 95 % intervals over seeds.

    Example:

        dcinterp experiment show experiments/recombination
        dcinterp experiment show experiments/parts --arm all --baseline plain
    """
    from dcinterp.evidence.page import table_of
    from dcinterp.evidence.verdict_words import LEVEL
    from dcinterp.evidence.verdicts import comparisons, difference_line
    from dcinterp.train.control.experiment_file import read_experiment

    if bool(arm) != bool(baseline):
        raise UserError("--arm and --baseline need each other: what is printed is the one minus the other.")
    if both := set(arm or ()) & set(baseline or ()):
        raise UserError(f"{min(both)!r} is on both sides; a difference needs two.")
    if not arm and level is not None:
        raise UserError("--level is of the intervals of --arm minus --baseline; name two arms.")
    if arm and as_json:
        raise UserError("--json prints whole comparisons, and no --arm minus --baseline; give the one or the other.")
    if not arm and draws is not None:
        raise UserError("--draws is of the intervals of --arm minus --baseline; name two arms.")
    experiment = read_experiment(folder, table=table)
    for each in (*(arm or ()), *(baseline or ())):
        require_known("arm", each, experiment.arms)
    found = comparisons(experiment)
    if as_json:
        print_results_json(found)
        return
    if arm and baseline:
        drawn = [replace(each, draws=draws or each.draws) for each in found]
        lines = [difference_line(each, arm, baseline, level or LEVEL) for each in drawn]
        typer.echo("\n".join([*lines, *dict.fromkeys(note for each in found for note in each.warnings())]))
        return
    for each in found:
        typer.echo("\n\n".join([each.meaning, table_of(each, experiment.solved_at), *each.warnings()]) + "\n")


@app.command("list")
def list_all() -> None:
    """What became of every hypothesis of the experiments that come with dcinterp, and of those in `experiments`.

    Example:

        dcinterp experiment list
    """
    from dcinterp.evidence.verdicts import not_repeated, verdict_rows, verdict_table
    from dcinterp.train.control.experiment_file import find_experiments, read_experiment

    read = [read_experiment(folder) for folder in find_experiments().values()]
    typer.echo(f"{verdict_table(verdict_rows(read))}\n\n{not_repeated(read)}")


@app.command()
def ways() -> None:
    """By which ways the models carry a puzzle that they learnt, in how many seeds, of all experiments that looked.

    Example:

        dcinterp experiment ways
    """
    from dcinterp.evidence.motifs import motif_table, motifs
    from dcinterp.train.control.experiment_file import find_experiments, read_experiment

    read = (read_experiment(folder) for folder in find_experiments().values())
    typer.echo(motif_table(motifs(read), ""))


@app.command()
def circuits(
    folder: Folder,
    table: Annotated[Path | None, typer.Option(help="Another table than its own.", metavar="FILE")] = None,
    arm: Annotated[list[str] | None, typer.Option(help="Of these arms alone, instead of all.")] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            help="Markdown file to write besides; for the page, more-circuits.md beside circuits.csv.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """By which edges the models that learnt a puzzle carry its questions; of every arm and seed whose model is there.

    What is measured is kept in circuits.csv, beside experiment.yaml or in a folder of the name of --table; it goes on
    where it was stopped.

    Example:

        dcinterp experiment circuits experiments/birth --table again.csv
    """
    from dcinterp.evidence.circuits import circuits_text

    require_file_place(to)
    place = folder.parent if folder.is_file() else folder
    for read in (table, *(place / name for name in ("circuits.csv", "results.csv", "experiment.yaml", "protocol.md"))):
        require_different(to, read)
    text = circuits_text(folder, table, arm, said=partial(typer.echo, err=True))
    if to is not None:
        with whole(to) as made:
            made.write_text(text, encoding="utf-8")
    typer.echo(text)


@app.command()
def page(
    folder: Folder,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Markdown file to write; docs/experiments/NAME.md by default.", metavar="FILE"),
    ] = None,
) -> None:
    """Write the page of an experiment: what was asked, tables, a figure, and which hypotheses hold.

    Example:

        dcinterp experiment page experiments/recombination
    """
    import dcinterp
    from dcinterp.evidence.multiplier import found_fit
    from dcinterp.evidence.page import compute_picture, edges_picture, has_edges, page_of
    from dcinterp.evidence.verdicts import comparisons
    from dcinterp.figures.base import export
    from dcinterp.train.control.experiment_file import read_experiment

    experiment = read_experiment(folder)
    found = comparisons(experiment)  # before its place: without runs there is nothing to write
    place = to or Path("docs/experiments") / f"{experiment.folder.name}.md"
    if place.suffix != ".md":
        raise UserError(f"--to writes a Markdown page, with pictures beside it; {place.name} does not end in .md.")
    if to is None and not place.parent.is_dir():
        raise UserError(f"There is no folder {place.parent} here; give the page to write, with --to {place.name}.")
    require_file_place(place)
    picture = place.with_suffix(".svg")
    drawn = export.image(dcinterp.figures.plot(found[0]), "svg")
    files = {place: page_of(experiment, picture.name).encode(), picture: drawn}
    if (fit := found_fit(experiment)) is not None:
        files[place.with_name(compute_picture(picture.name))] = export.image(dcinterp.figures.plot(fit), "svg")
    if has_edges(experiment):
        starts = dcinterp.edge_starts(str(experiment.folder))
        files[place.with_name(edges_picture(picture.name))] = export.image(dcinterp.figures.plot(starts), "svg")
    for file, text in files.items():
        with whole(file) as made:
            made.write_bytes(text)
    typer.echo(f"Page: {place}")
