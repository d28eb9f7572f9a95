"""`dcinterp train`: train a model on a text, on images, or from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    config: Annotated[Path | None, typer.Argument(help="YAML file of the run; a small run without one.")] = None,
    text: Annotated[str | None, typer.Option(help="File or folder of text to train on.")] = None,
    images: Annotated[
        str | None, typer.Option(help="Folder of images, a subfolder per class; 'digits' for scikit-learn's.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Model to train; `dcinterp presets` lists them.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the small run.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for checkpoints, metrics and the model.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last good checkpoint of the output folder.")
    ] = False,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key, as in --set recipe.learning_rate=1e-3. Repeatable."),
    ] = None,
) -> None:
    """Train a model: on a text, on images, or as a YAML file says (docs/config-reference.md has every key).

    Without a file and without text, it reads the source files of Python's standard library.

    Examples:

        dcinterp train --text my-novel.txt

        dcinterp train --images digits --steps 300

        dcinterp train configs/shipped-pair.yaml --output runs/twin --preset tiny-transformer++

        dcinterp train configs/shipped-pair.yaml --resume

        accelerate launch --num_processes 2 -m dcinterp train configs/shipped-pair.yaml
    """
    from dcinterp.errors import UserError
    from dcinterp.progress import console
    from dcinterp.train.recipe import build_config, read_tree
    from dcinterp.train.run import train
    from dcinterp.train.starter import with_material
    from dcinterp.train.trainer import processes

    tree = with_material(read_tree(config) if config else {}, text, "" if images == "digits" else images)
    flags = {"output": output, "model.preset": preset}
    if steps is not None:
        if config is not None:
            raise UserError("--steps is for runs without a file; write the steps into the phases of the file.")
        tree["data"]["phases"][0]["steps"] = steps
    # Flags come last: they win over the file and over --set.
    overrides = [*(override or []), *(f"{key}={value}" for key, value in flags.items() if value is not None)]
    resolved = build_config(tree, overrides)
    if not processes().is_main_process:
        train(resolved, resume=resume)
        return
    with console("training") as progress:
        folder = train(resolved, resume=resume, progress=progress)
    typer.echo(f"Trained model: {folder}")
    if not (folder / "tokenizer.json").is_file():
        typer.echo(f"Look inside:   python -c 'import dcinterp; dcinterp.load(\"{folder}\")'")
        return
    typer.echo(f"Look inside:   dcinterp app {folder}")
