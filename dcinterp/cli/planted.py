"""`dcinterp planted`: models with known circuits, and attribution methods held to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Models with known circuits, and attribution methods held to them.", no_args_is_help=True)

VARIANTS = ("", " noise=0.01", " redundancy=2", " rank=3", " circuits=4")
"""What the table of docs/analyses/planted.md plants of every circuit."""


@app.callback()
def choose() -> None:
    """Models with known circuits, and attribution methods held to them.

    Any analysis takes them by name: `dcinterp analyze attribute-edges planted:lend-by-kp --prompt ...`.
    """


@app.command("list")
def list_circuits() -> None:
    """List the kinds of circuit, each with an example.

    Example:

        dcinterp planted list
    """
    from dcinterp.planted import circuits, plant

    for name, circuit in circuits().items():
        example = plant(name).examples(1)[0]
        typer.echo(f"{name}: {circuit.SUMMARY}\n    {example.prompt} -> {example.target}")


@app.command()
def show(
    circuit: Annotated[str, typer.Argument(help='What to plant, as in "lend-by-kp noise=0.01 seed=3".')],
    example: Annotated[int, typer.Option(min=0, help="Which of its examples.")] = 0,
) -> None:
    """Show an example of a planted model, the edges that make its answer, and those that edge attribution finds.

    Examples:

        dcinterp planted show gate-by-qg

        dcinterp planted show "many-to-one redundancy=2 seed=3" --example 4
    """
    from dcinterp import attribute_edges, load
    from dcinterp.analysis.edges import BRANCHES
    from dcinterp.loading import PLANTED
    from dcinterp.planted import read_plant

    planted = read_plant(circuit)
    asked = planted.examples(example + 1)[example]
    edges = planted.truth(asked).edges
    typer.echo(f"{asked.prompt} -> {asked.target} (not {asked.foil})")
    for role, heads in planted.roles[asked.circuit].items():
        typer.echo(f"  layer 1, {role}: {', '.join(f'1.{head}' for head in heads)}")
    for role, heads in (("previous token", planted.previous), ("question", planted.question)):
        typer.echo(f"  layer 0, {role}: {', '.join(f'0.{head}' for head in heads)}")
    found = attribute_edges(load(f"{PLANTED}{circuit}"), asked.prompt, asked.target, asked.foil, per_source=False)
    typer.echo("edge, planted sign, integrated gradients (logits):")
    number = int((edges != 0).sum())
    for edge in found.top(number + 3, lent=False):
        sign = int(edges[edge.layer, BRANCHES.index(edge.branch), edge.head_from, edge.head_to])
        place = f"{edge.layer}.{edge.branch}.{edge.head_from}>{edge.head_to}"
        typer.echo(f"  {place:14} {sign:+d}  {edge.score:+9.4f}" if sign else f"  {place:14}  .  {edge.score:+9.4f}")


@app.command()
def table(
    planted: Annotated[list[str] | None, typer.Argument(help="What to plant; the docs' table by default.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Models of every kind.")] = 5,
    examples: Annotated[int, typer.Option(min=1, help="Prompts per model.")] = 1,
    save: Annotated[Path | None, typer.Option(help="Write the result to this folder too.", metavar="FOLDER")] = None,
) -> None:
    """Print how well every attribution method recovers planted circuits, as the tables of docs/analyses/planted.md.

    Example:

        dcinterp planted table "lend-by-kp" "lend-by-kp noise=0.02" --seeds 3
    """
    from dcinterp import method_benchmark
    from dcinterp.planted import circuits
    from dcinterp.progress import console

    settings = planted or [name + variant for variant in VARIANTS for name in circuits()]
    with console("methods") as progress:
        result = method_benchmark(settings, seeds=seeds, examples=examples, progress=progress)
    if save is not None:
        result.save(save)
    typer.echo(f"{seeds} models of each kind, {examples} prompt{'s' if examples > 1 else ''} each")
    for title, question, quantity in TABLES:
        typer.echo(f"\n{title}\n\n{result.markdown(question, quantity)}")
    for sentence in result.banners():
        typer.echo(f"\n{sentence}")


TABLES = (
    ("Which edges? AUROC (95 % interval over models where it is wider than 0.005)", "edges", "auroc"),
    ("Which edges? Precision among as many of the highest as there are true ones", "edges", "precision"),
    ("Whose attention is used? Precision", "finds", "precision"),
    ("Which heads write the answer? Precision", "writes", "precision"),
    ("Which branches carry it? Precision", "branches", "precision"),
    ("Edges: share of the measured effects above 0.1 logits whose sign is predicted", "edges", "sign_agreement"),
    ("Edges: calibration error against ablating each edge alone", "edges", "calibration_error"),
    ("Control: AUROC for edges with the labels in random order", "edges", "auroc_shuffled"),
)
