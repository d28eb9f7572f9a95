"""`dcinterp train`: train a model from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    config: Annotated[Path, typer.Argument(help="YAML file of the run.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint of the output folder.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for checkpoints, metrics and the model.")] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key, as in --set recipe.learning_rate=1e-3. Repeatable."),
    ] = None,
) -> None:
    """Train a model on the synthetic tasks with the paper's recipe.

    Examples:

        dcinterp train configs/quick.yaml

        dcinterp train configs/shipped-pair.yaml --output runs/twin --set model.preset=tiny-transformer++

        dcinterp train configs/shipped-pair.yaml --resume
    """
    from dcinterp.progress import console
    from dcinterp.train.recipe import read_config
    from dcinterp.train.run import train

    overrides = [*(override or []), *([f"output={output}"] if output is not None else [])]
    resolved = read_config(config, overrides)
    with console("training") as progress:
        folder = train(resolved, resume=resume, progress=progress)
    typer.echo(f"Trained model: {folder}")
    typer.echo(f"Look inside:   dcinterp app {folder}")
