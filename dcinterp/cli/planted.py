"""`dcinterp planted`: models with known circuits, to test attribution methods on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dcinterp.cli._help import Verbs
from dcinterp.cli._options import require_apart
from dcinterp.cli._outputs import (
    print_json,
    print_result_json,
    require_different,
    require_file_place,
    require_folder_place,
    require_result_place,
    save_result,
)
from dcinterp.support.whole_files import whole

if TYPE_CHECKING:
    from torch import Tensor

    from dcinterp.analysis.attribution.attribute_edges import EdgeAttribution, EdgeScore

app = Verbs()

VARIANTS = ("", " noise=0.01", " redundancy=2", " rank=3", " circuits=4")
"""The variants of every circuit in the table of docs/analyses/planted.md."""


@app.callback()
def choose() -> None:
    """Build models whose circuits are known, and test attribution methods on them.

    The weights are set by hand so that chosen heads share their attention through a chosen branch. Any analysis
    takes such a model by name.

    Example:

        dcinterp analyze predict planted:share-by-kp \\
            --prompt "<bos> Dora cherry Bob frog Carl emerald kind Carl"
    """


@app.command("list")
def list_circuits(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: per circuit its name, summary, and a prompt with its answer.")
    ] = False,
) -> None:
    """List the kinds of circuit, each with an example.

    Example:

        dcinterp planted list
    """
    from dcinterp.planted import circuits, plant

    if as_json:
        made = {name: plant(name).examples(1)[0] for name in circuits()}
        print_json(
            [
                {"name": name, "summary": circuits()[name].SUMMARY, "prompt": each.prompt, "answer": each.target}
                for name, each in made.items()
            ]
        )
        return
    for name, circuit in circuits().items():
        example = plant(name).examples(1)[0]
        typer.echo(f"{name}: {circuit.SUMMARY}\n    {example.prompt} -> {example.target}")


@app.command()
def show(
    circuit: Annotated[str, typer.Argument(help='What to plant, as in "share-by-kp noise=0.01 seed=3".')],
    example: Annotated[int, typer.Option(min=0, max=9999, help="Number of the example, from 0.")] = 0,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON: the example, heads by role, and edges with their scores."),
    ] = False,
) -> None:
    """Show a planted circuit, and which of its edges attribution finds.

    For one example: its heads by role, then the edges that make its answer (planted sign +1 or -1) and the strongest
    others (a dot), with their scores in logits.

    Examples:

        dcinterp planted show gate-by-qg

        dcinterp planted show "many-to-one redundancy=2 seed=3" --example 4
    """
    from dcinterp.analysis.attribution.attribute_edges import attribute_edges
    from dcinterp.checkpoints.load import load
    from dcinterp.checkpoints.names import PLANTED
    from dcinterp.mechanism.branches import NAMES
    from dcinterp.planted import Traits, circuits, read_plant

    planted = read_plant(circuit)
    chosen = planted.examples(example + 1)[example]
    truth, traits = planted.truth(chosen), Traits.of(circuits()[planted.circuit])
    layer_of = {role: traits.LAYER_OF.get(role, 1) for role in circuits()[planted.circuit].ROLES}
    roles = {
        f"layer {layer_of[role]}, {role}": [f"{layer_of[role]}.{h}" for h in heads]
        for role, heads in planted.roles[chosen.circuit].items()
    }
    for role, heads in (("previous token", planted.previous), ("question", planted.question)):
        roles[f"layer 0, {role}"] = [f"0.{head}" for head in heads]
    bridge = load(f"{PLANTED}{circuit}")
    rows = []
    for name in traits.STAGES:
        stage: Literal["pre", "post"] = "pre" if name == "pre" else "post"
        edges = truth.stages[stage]
        found = attribute_edges(
            bridge, chosen.prompt, chosen.target, chosen.foil, stage=stage, method="ig", per_source=False
        )
        rows += [
            (
                f"{edge.layer}.{'pre.' if stage == 'pre' else ''}{edge.branch}.{edge.head_from}>{edge.head_to}",
                int(edges[edge.layer, NAMES.index(edge.branch), edge.head_from, edge.head_to]),
                edge.score,
            )
            for edge in _shown(found, edges)
        ]
    if as_json:
        scored = [dict(zip(("edge", "planted", "score"), row, strict=True)) for row in rows]
        question = {"prompt": chosen.prompt, "target": chosen.target, "foil": chosen.foil}
        print_json(question | {"roles": roles, "edges": scored})
        return
    typer.echo(f"{chosen.prompt} -> {chosen.target} (not {chosen.foil})")
    for role, names in roles.items():
        typer.echo(f"  {role}: {', '.join(names)}")
    typer.echo("edge, planted sign, integrated gradients (logits):")
    for place, sign, score in rows:
        typer.echo(f"  {place:14} {f'{sign:+d}' if sign else ' .'}  {score:+9.4f}")


def _shown(found: EdgeAttribution, edges: Tensor) -> list[EdgeScore]:
    """All planted edges, also those of no score, and the three strongest others; strongest first.

    edges: [layer, branch, head_from, head_to], not zero where one is planted.
    """
    from dcinterp.analysis.attribution.attribute_edges import EdgeScore
    from dcinterp.mechanism.branches import NAMES

    def key(edge: EdgeScore) -> tuple[int, int, int, int]:
        return edge.layer, NAMES.index(edge.branch), edge.head_from, edge.head_to

    ranked = found.top(found.scores.numel(), shared=False)
    others = [edge for edge in ranked if not edges[key(edge)]][:3]
    chosen = [edge for edge in ranked if edges[key(edge)] or edge in others]
    named = {key(edge) for edge in chosen}
    missed = [tuple(at) for at in edges.nonzero().tolist() if tuple(at) not in named]
    return chosen + [EdgeScore(layer, NAMES[branch], of, to, 0.0) for layer, branch, of, to in missed]


@app.command()
def table(
    planted: Annotated[
        list[str] | None, typer.Argument(help="What to plant; by default all that docs/analyses/planted.md shows.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Models of every kind, which differ in their random parts.")] = 5,
    examples: Annotated[int, typer.Option(min=1, help="Prompts per model.")] = 1,
    save: Annotated[Path | None, typer.Option(help="Write the result to this folder too.", metavar="FOLDER")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON document, as `dcinterp analyze` does.")
    ] = False,
) -> None:
    """Print how well every attribution method recovers planted circuits.

    Example:

        dcinterp planted table share-by-kp "share-by-kp noise=0.02" --seeds 1
    """
    from dcinterp.analysis.circuits.method_benchmark import method_benchmark
    from dcinterp.planted import together
    from dcinterp.support.progress import console

    require_result_place(save, "MethodScores")
    settings = planted or [name + variant for variant in VARIANTS for name in together()]
    with console("methods") as progress:
        result = method_benchmark(settings, seeds=seeds, examples=examples, progress=progress)
    save_result(result, save)
    if as_json:
        print_result_json(result)
        return
    typer.echo(f"{seeds} models of each kind, {examples} prompt{'s' if examples > 1 else ''} each")
    for title, question, quantity in TABLES:
        typer.echo(f"\n{title}\n\n{result.markdown(question, quantity)}")
    for sentence in result.warnings():
        typer.echo(f"\n{sentence}")


@app.command()
def bench(
    ctx: typer.Context,
    rows: Annotated[
        Path, typer.Argument(help="File of the measurements, a line a model; what it holds is not measured again.")
    ],
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", help="Planted kinds and trained circuits; all by default.")
    ] = None,
    methods: Annotated[list[str] | None, typer.Option("--method", help="Methods; all by default.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Models of each planted setting.")] = 3,
    prompts: Annotated[int, typer.Option(min=2, max=100, help="Prompts of each model; half of them rank edges.")] = 6,
    short: Annotated[
        bool, typer.Option("--short", help="One seed, two prompts, no background; about a second a kind.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option(help="Write what was found to this file, as docs/planted-bench.md.", metavar="FILE")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: by setting and method, every number with its interval.")
    ] = False,
) -> None:
    """Hold ways of scoring edges to every circuit that is known: planted, before and after the softmax, and trained.

    AUROC, precision, rank correlation with measured effects, CMD, CPR and cost. It goes on where it was stopped.

    Examples:

        dcinterp planted bench rows.jsonl --kind chain --kind backup --short

        dcinterp planted bench docs/planted-bench.jsonl --prompts 4 \\
            --page docs/planted-bench.md
    """
    require_apart(ctx, "short", "seeds", "prompts")
    from dataclasses import asdict

    from dcinterp.bench.planted import METHODS, NEEDED, measure, settings_of, summarise
    from dcinterp.bench.planted_page import page_of, table_of
    from dcinterp.bench.row_file import read_rows
    from dcinterp.planted.fixtures import fixtures
    from dcinterp.support.errors import require_known
    from dcinterp.support.progress import console

    require_file_place(rows)
    require_file_place(page)
    require_different(rows, page)
    for kind in kinds or ():
        require_known("kind", kind, fixtures())
    for method in methods or ():
        require_known("method", method, METHODS)
    wanted = settings_of(kinds or (), 1, [" heads=8"]) if short else settings_of(kinds or (), seeds)
    with console("planted bench") as progress:
        made = measure(
            wanted, rows, methods=methods or tuple(METHODS), prompts=2 if short else prompts, progress=progress
        )
    typer.echo(f"{made} more rows", err=True)
    found = read_rows(rows, NEEDED)
    if page is not None:
        with whole(page) as place:
            place.write_text(page_of(found, str(rows), str(page)), encoding="utf-8")
    if as_json:
        numbers = summarise(found)
        print_json({s: {m: {k: asdict(v) for k, v in of.items()} for m, of in by.items()} for s, by in numbers.items()})
        return
    typer.echo(table_of(found))


@app.command("train-truth")
def train_truth(
    circuit: Annotated[str, typer.Argument(help="A stated circuit; an unknown name lists them.")],
    output: Annotated[Path, typer.Argument(help="Folder for the model; given again, training goes on from there.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps at most, with those of earlier calls.")] = 3000,
    seconds: Annotated[float, typer.Option(min=0, help="Stop after so long; the next call goes on.")] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the marks that the model reached.")] = False,
) -> None:
    """Train a small DCFormer to answer by a stated circuit and by nothing else, through interchange interventions.

    It stops once interchange accuracy is at least 99 % and no part outside changes more than 1 % of the answers: some
    hundred steps, a minute of one core for most circuits. A model counts as a fixture once it is in the folder
    dcinterp/planted/trained.

    Example:

        dcinterp planted train-truth lookup-post-kp lookup --steps 400
    """
    from dataclasses import asdict

    from dcinterp.bench.trained_truth import STATE, train_truth
    from dcinterp.planted.stated import stated
    from dcinterp.support.progress import console

    chosen = stated(circuit)
    require_folder_place(
        output, ours=lambda path: (path / STATE).exists() or (path / "circuit.json").exists(), anew=False
    )
    with console(circuit) as progress:
        marks = train_truth(chosen, output, steps=steps, seconds=seconds, progress=progress)
    if as_json:
        print_json(asdict(marks) | {"reached": marks.reached})
        return
    typer.echo(
        f"right {marks.accuracy:.1%}, by the circuit under interchange {marks.interchange:.1%}, changed from outside "
        f"{marks.outside:.1%}"
        + (f", by one edge outside at most {marks.worst:.1%}" if marks.worst is not None else "")
        + (": the marks are reached" if marks.reached else ": not reached; give it more steps, or more seconds")
    )


TABLES = (
    ("Which edges? AUROC (95 % interval over models where it is wider than 0.005)", "edges", "auroc"),
    ("Which edges? Precision among as many of the highest as there are true ones", "edges", "precision"),
    ("Which heads' attention is used? Precision", "attention", "precision"),
    ("Which heads' output makes the answer? Precision", "output", "precision"),
    ("Through which branches? Precision", "branches", "precision"),
    ("Edges: share of the measured effects above 0.1 logits whose sign is predicted", "edges", "sign_agreement"),
    ("Edges: calibration error against ablating each edge alone", "edges", "calibration_error"),
    ("Control: AUROC for edges with the labels in random order", "edges", "auroc_shuffled"),
)
