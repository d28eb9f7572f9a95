"""`dcinterp tasks`: the synthetic tasks on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dcinterp.cli._help import Verbs
from dcinterp.cli._models import MODEL, TOKENIZER
from dcinterp.cli._options import require_apart
from dcinterp.cli._outputs import print_json, require_file_place, require_folder_place
from dcinterp.cli._screen import cell, print_table
from dcinterp.support.errors import UserError
from dcinterp.support.whole_files import whole

if TYPE_CHECKING:
    from dcinterp.support.progress import Progress
    from synthetic_tasks import Evaluation, Row, Solution, Task

app = Verbs()

TasksOption = Annotated[
    str,
    typer.Option(
        "--tasks",
        help="Ids, numbers, ranges, patterns or relations, separated by commas, as in 56,60-62,same-person; all 74 by "
        "default.",
    ),
]
SplitOption = Annotated[
    Literal["train", "held-out"] | None, typer.Option(help="Use only facts of this part; both by default.")
]


@app.callback()
def choose() -> None:
    """List, generate, solve, change and evaluate the synthetic tasks.

    A task is a pattern (how the question selects a fact) with a relation (what is asked about it), such as same-person
    with obj->superclass: "Ruth has a lime. John has a dog. >. John has a kind of" -> animal.

    Examples:

        dcinterp tasks list --tasks same-person

        dcinterp tasks solve "There are tea, meat, meat. Which is not meat? The"
    """


def chosen(selection: str) -> list[Task]:
    """The tasks a selection names (see synthetic_tasks.selection)."""
    from synthetic_tasks.selection import chosen as select

    return select(selection)


@app.command("list")
def list_tasks(
    tasks: TasksOption = "",
    extra: Annotated[bool, typer.Option("--extra", help="Also list the tasks that the released file lacks.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: per task id, pattern, relation, domain, surface, example.")
    ] = False,
) -> None:
    """List tasks with an example of each.

    Examples:

        dcinterp tasks list --tasks same-person

        dcinterp tasks list --extra --json
    """
    from rich.table import Table

    from synthetic_tasks import EXTRA_TASKS, generate

    named = chosen(tasks)
    listed = named + [task for task in EXTRA_TASKS.values() if extra and task not in named]
    fields = [
        {
            "id": task.id,
            "pattern": task.qk,
            "relation": task.relation,
            "domain": task.domain,
            "surface": task.surface,
            "example": generate(task, 1, 0, examples=1)[0].examples[0].released_text,
        }
        for task in listed
    ]
    if as_json:
        print_json(fields)
        return
    table = Table(*fields[0], box=None)
    for line in fields:
        table.add_row(*map(cell, line.values()))
    print_table(table)


@app.command()
def generate(
    output: Annotated[Path, typer.Argument(help="File to write (.jsonl), or - for standard output.")],
    tasks: TasksOption = "",
    rows: Annotated[int, typer.Option(min=1, help="Rows per task.")] = 12,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes on every machine.")] = 0,
    examples: Annotated[int, typer.Option(min=1, max=1000, help="Examples per row.")] = 8,
    split: SplitOption = None,
    holdout: Annotated[
        list[str] | None,
        typer.Option(
            help="Hold out what combines this pattern with this relation, and write the other tasks. Repeatable.",
            metavar="PATTERN:RELATION",
        ),
    ] = None,
    test: Annotated[bool, typer.Option("--test", help="With --holdout: write only the held-out tasks.")] = False,
) -> None:
    """Write rows of examples, in the format that the authors of the paper released: JSON lines.

    A row is one line: {"task_id": ..., "texts": ...} with the examples of one task, answers in brackets.

    Examples:

        dcinterp tasks generate dataset.jsonl --rows 12 --seed 1

        dcinterp tasks generate - --tasks 56 --rows 1 --examples 2

        dcinterp tasks generate train.jsonl --holdout "same-person:city->country"

        dcinterp tasks generate test.jsonl --test \\
            --holdout "same-person:city->country"
    """
    from synthetic_tasks import generate as generate_rows
    from synthetic_tasks import write_jsonl
    from synthetic_tasks.dataset import format_record

    if str(output) != "-":
        require_file_place(output, only=".jsonl")
    selected = divided(chosen(tasks), holdout or [], test)
    made = [row for task in selected for row in generate_rows(task, rows, seed, examples=examples, split=split)]  # type: ignore[arg-type]
    if str(output) == "-":
        for row in made:
            typer.echo(format_record(row))
        return
    with whole(output) as place:
        write_jsonl(made, place)
    typer.echo(f"{output}: {len(made)} rows of {len(selected)} tasks")


def divided(tasks: list[Task], holdout: list[str], test: bool) -> list[Task]:
    """The training or the test side of a recombination split; all tasks without one."""
    from synthetic_tasks import recombination_split

    if not holdout:
        if test:
            raise ValueError("--test needs --holdout PATTERN:RELATION")
        return tasks
    pairs = [tuple(pair.split(":", 1)) for pair in holdout]
    wrong = [pair for pair, parts in zip(holdout, pairs, strict=True) if len(parts) != 2]
    if wrong:
        raise ValueError(f"--holdout takes PATTERN:RELATION, such as same-person:city->country, not {wrong[0]!r}")
    split = recombination_split([(pair[0], pair[-1]) for pair in pairs], tasks)
    return list(split.test if test else split.train)


@app.command()
def solve(
    ctx: typer.Context,
    lines: Annotated[list[str] | None, typer.Argument(help="Lines, with or without their answer.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="A file of lines, or of the released format (.jsonl); - for standard input.", metavar="FILE"),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="The task that the lines belong to, such as task56; found out by default.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: a list with the solution of every line, or its error.")
    ] = False,
) -> None:
    """Solve lines by reading them: accepted answers, the fact they come from, pattern and relation.

    Exit code 1 if a line cannot be solved, or its answer is wrong.

    Examples:

        dcinterp tasks solve \\
            "< Ruth has a lime. John has a dog. Karen has a pear. >. John has"

        dcinterp tasks generate rows.jsonl --rows 1

        dcinterp tasks solve --file rows.jsonl --json
    """
    from synthetic_tasks import UnsolvableLine
    from synthetic_tasks import solve as solve_line

    failed = 0
    found: list[dict[str, object]] = []
    for line, task_id in given_lines(lines or [], file, task):
        try:
            solution = solve_line(line, task_id)
        except UnsolvableLine as error:
            failed += 1
            found.append({"line": line, "error": error.reason})
            if not as_json:
                typer.echo(f"UNSOLVED  {error}")
            continue
        failed += solution.correct is False
        found.append(fields_of(solution, line))
        if not as_json:
            typer.echo(sentence(solution))
    if as_json:
        print_json(found)
    if failed:
        raise typer.Exit(1)


def given_lines(lines: list[str], file: Path | None, task: str | None) -> list[tuple[str, str | None]]:
    """(line, task id if known) from the arguments or a file."""
    if not lines and file is None:
        raise ValueError("give lines to solve, or --file")
    if lines and file is not None:
        raise ValueError("give lines to solve or --file, not both")
    if file is None:
        return [(line, task) for line in lines]
    from synthetic_tasks import find
    from synthetic_tasks.dataset import parse_texts

    try:
        read = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        text = read.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        name = "standard input" if str(file) == "-" else file
        raise ValueError(f"{name} is not a text file; give a file of lines, or of the released format.") from error
    found: list[tuple[str, str | None]] = []
    for number, line in enumerate(filter(str.strip, text.split("\n")), start=1):
        if not line.lstrip().startswith(("{", "[", "}", "]")):
            found.append((line, task))
            continue
        try:
            task_id, texts = parse_texts(line)
            find(task_id)
        except ValueError as error:
            raise ValueError(f"{file}, record {number}: not in the released format ({error})") from error
        if task is not None:
            raise ValueError(f"{file} says the task of every record; leave --task out.")
        found += [(one, task_id) for one in texts.strip("\n").split("\n")]
    if not found:
        raise ValueError(f"{file} has no lines; give a file of lines, or of the released format")
    return found


def fields_of(solution: Solution, line: str) -> dict[str, object]:
    return {
        "line": line,
        "task": solution.task_id,
        "also": solution.task_ids[1:],
        "pattern": solution.pattern,
        "transformation": solution.transformation,
        "facts": solution.facts,
        "sources": solution.sources,
        "accepted": solution.accepted,
        "given": solution.given,
        "correct": solution.correct,
    }


def sentence(solution: Solution) -> str:
    """One line for the terminal."""
    remark = {None: "", True: "  (right)", False: f"  (WRONG: {solution.given})"}[solution.correct]
    sources = " or ".join(str(place + 1) for place in solution.sources)
    return (
        f"{' or '.join(solution.accepted)}{remark}  <- fact {sources}, {solution.pattern}, "
        f"{solution.transformation}, {' = '.join(solution.task_ids)}"
    )


@app.command()
def counterfactuals(
    line: Annotated[str, typer.Argument(help="One line, with or without its answer.")],
    seed: Annotated[int, typer.Option(help="Seed of the choice among several counterfactuals.")] = 0,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON: by what changed, the prompt, accepted answers and foil, a wrong one."),
    ] = False,
) -> None:
    """Show the counterfactual prompts of a line: one thing changed, and the new answer.

    Example:

        dcinterp tasks counterfactuals \\
            "< Ruth has a lime. Karen has a pear. John has a dog. >. John has"
    """
    from synthetic_tasks import NoCounterfactual
    from synthetic_tasks import counterfactuals as counterfactuals_of
    from synthetic_tasks import solve as solve_line

    made = counterfactuals_of(solve_line(line).example(), seed=seed)
    fields: dict[str, dict[str, object]] = {
        kind: {"missing": str(found)}
        if isinstance(found, NoCounterfactual)
        else {"prompt": found.corrupt.prompt, "accepted": found.corrupt.accepted, "foil": found.foil}
        for kind, found in made.items()
    }
    if as_json:
        print_json(fields)
        return
    for kind, found in made.items():
        typer.echo(
            f"{kind:9} "
            + (
                str(found)
                if isinstance(found, NoCounterfactual)
                else f"{found.corrupt.prompt} [ {' | '.join(found.corrupt.accepted)} ]"
            )
        )


@app.command("twins", hidden=True)
def former_counterfactuals(
    line: Annotated[str, typer.Argument(help="One line, with or without its answer.")],
    seed: Annotated[int, typer.Option(help="Seed of the choice among several counterfactuals.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, as `dcinterp tasks counterfactuals` does.")
    ] = False,
) -> None:
    """The former name of `dcinterp tasks counterfactuals`.

    Example:

        dcinterp tasks twins "There are tea, meat, meat. Which is not meat? The"
    """
    from dcinterp.support.former_names import GOES

    typer.echo(f"dcinterp: note: `tasks twins` is called `tasks counterfactuals` now; {GOES}.", err=True)
    counterfactuals(line, seed, as_json)


@app.command()
def evaluate(
    ctx: typer.Context,
    model: Annotated[str, MODEL],
    data: Annotated[
        Path | None,
        typer.Option(
            help="A file of the released format; without it rows of held-out facts are generated.", metavar="FILE"
        ),
    ] = None,
    tasks: TasksOption = "",
    rows: Annotated[int, typer.Option(min=1, help="Generated rows per task.")] = 12,
    seed: Annotated[int, typer.Option(help="Seed of the generated rows.")] = 0,
    by: Annotated[
        Literal["all", "task", "pattern", "transformation", "family", "domain", "surface", "shots", "source"],
        typer.Option(help="What a line of the table stands for."),
    ] = "pattern",
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for answers (CSV, parquet) and tables (JSON); an interrupted run goes on.", metavar="FOLDER"
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per forward pass; small is fast on a CPU.")] = 4,
    device: Annotated[str | None, typer.Option(help="Where to run it: cpu (the default), cuda, mps.")] = None,
    tokenizer: Annotated[str | None, TOKENIZER] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: the summary, with the tables of every kind.")
    ] = False,
) -> None:
    """Evaluate a model on the tasks, in percent of right answers, beside baselines.

    Examples:

        dcinterp tasks evaluate dcformer++ --tasks same-person --rows 4

        dcinterp tasks generate rows.jsonl --rows 1

        dcinterp tasks evaluate dcformer++ --data rows.jsonl --by family
    """
    require_apart(ctx, "data", "rows", "seed")
    from dcinterp.support.progress import console
    from synthetic_tasks import evaluate as evaluate_rows

    require_folder_place(output, ours=lambda folder: may_hold_evaluation(folder, model), anew=False)
    with console("evaluating") as progress:
        chosen_rows = rows_to_evaluate(data, chosen(tasks), bool(tasks), rows, seed, progress)
        progress(0, 0, f"loading {model}")
        import dcinterp

        bridge = dcinterp.load(model, device=device, tokenizer=tokenizer)
        if bridge.tokenizer is None:
            raise ValueError(f"{model} has no tokenizer to read the tasks with; give it one with --tokenizer FOLDER.")
        progress(0, 0)
        result = evaluate_rows(
            bridge, chosen_rows, batch_size=batch_size, progress=progress, folder=output, name=model, seed=seed
        )
    print_json(result.summary()) if as_json else typer.echo(report(result, by))


def may_hold_evaluation(folder: Path, model: str) -> bool:
    """Whether an evaluation of this model can be written into a folder, at most over an earlier one of it.

    Raises:
        UserError: the folder holds the evaluation of another model.
    """
    if not (folder / "summary.json").exists():
        return (folder / "unfinished.jsonl").exists() or not any(folder.glob("answers.*"))
    try:
        found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except ValueError:
        return (folder / "unfinished.jsonl").exists()
    if not isinstance(found, dict) or not found.keys() >= {"model", "tables"}:
        return False
    if found["model"] != model:
        raise UserError(f"{folder} holds an evaluation of {found['model']}, not of {model}; give another folder.")
    return True


def rows_to_evaluate(
    data: Path | None, tasks: list[Task], selected: bool, rows: int, seed: int, progress: Progress
) -> list[Row]:
    """Rows of a file, or generated ones of the held-out part; only of the selected tasks."""
    from synthetic_tasks import generate as generate_rows
    from synthetic_tasks import read_jsonl

    if data is None:
        generated: list[Row] = []
        for number, task in enumerate(tasks):
            generated += generate_rows(task, rows, seed, split="held-out")
            progress(number + 1, len(tasks), "generating rows")
        return generated
    names = {task.id for task in tasks}
    read = [row for row in read_jsonl(data) if not selected or row.task_id in names]
    if not read:
        raise ValueError(f"{data} has no rows of the chosen tasks")
    return read


def report(result: Evaluation, by: str) -> str:
    """The table for the terminal: model and baselines, in percent, and the total."""
    from synthetic_tasks.evaluation import render

    table = result.table(by) if by in ("shots", "source") else result.compare(by)
    table = table.rename(columns={"source": "source (from 0)"})
    total = result.table("all").iloc[0]
    low, high = 100 * total["low"], 100 * total["high"]
    interval = (
        f"95 % interval {low:.1f} to {high:.1f}" if low == low else "one cluster of rows: too few for an interval"
    )
    return (
        f"{render(table)}\n\n{result.model}: {100 * total['accuracy']:.1f} % of {len(result.records)} answers "
        f"({interval}), perplexity {total['perplexity']:.2f}"
    )
