"""`dcinterp compose`: composition put into a trained model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from dcinterp.cli._models import model_names
from dcinterp.cli._outputs import print_json, require_folder_place


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="A folder of ours or of the Llama family, or a shipped model; with --merge, of a composition.",
            autocompletion=model_names,
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder to write; it must be empty or not exist.")],
    compose: Annotated[
        str | None, typer.Option(help="Way of composing; DCMHA (dynamic) by default.", metavar="NAME")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Rank of the dynamic projections; 2 by default.")] = None,
    groups: Annotated[int | None, typer.Option(help="Heads are composed within so many groups; 1 by default.")] = None,
    stages: Annotated[
        str | None, typer.Option(help="pre (scores), post (weights), or both by default.", metavar="STAGES")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="A further field, as in --set compose_static=true. Repeatable."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first values; 0 by default.")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Write a composition and its model as one ordinary folder.")
    ] = False,
    dtype: Annotated[
        str | None, typer.Option(help="With --merge, type of the weights to write; as the model's by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: folder, composition, parameters.")] = False,
) -> None:
    """Add composition to a trained model, so that its logits do not change.

    The folder receives what was added, and the name of the model and a hash of its weights. Training then learns it,
    and `--merge` makes one ordinary model of the two.

    Examples:

        dcinterp compose my-llama --output my-llama-composed

        dcinterp train --from my-llama-composed --train composition \\
            --text my-novel.txt

        dcinterp compose runs/my-novel/model --merge --output merged
    """
    from dcinterp.checkpoints.composition import compose as add
    from dcinterp.checkpoints.describe import describe
    from dcinterp.train.config.recipe import apply_override

    chosen: Any = stages.replace(",", " ").split() if stages is not None else None  # names are checked below
    changes: dict[str, object] = {}
    for each in override or []:
        apply_override(changes, each)
    require_folder_place(output)
    add(
        model,
        output,
        compose=compose,
        rank=rank,
        groups=groups,
        stages=chosen,
        changes=changes,
        seed=seed,
        merge=merge,
        dtype=dtype,
    )
    found = describe(output)
    if as_json:
        record = {"folder": str(output), "composition": found.composition, "parameters": found.parameters}
        print_json(record | {"composition_parameters": found.composition_parameters})
        return
    typer.echo(f"{output}: {found.composition}")
    typer.echo(f"{found.composition_parameters:,} parameters compose heads, of {found.parameters:,}")
    if not merge:
        typer.echo(
            f"Train them: dcinterp train --from {shlex.quote(str(output))} --train composition --text FILE_OR_FOLDER"
        )
