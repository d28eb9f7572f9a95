"""`dcinterp train`: train a model on a text, on images, or from a YAML file."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dcinterp.cli._training_progress import show_progress


def command(
    config: Annotated[Path | None, typer.Argument(help="YAML file of the run; a small run without one.")] = None,
    text: Annotated[str | None, typer.Option(help="File or folder of text to train on.")] = None,
    images: Annotated[
        str | None, typer.Option(help="Folder of images, a subfolder per class; 'digits' for scikit-learn's.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Model to train; `dcinterp presets` lists them.")] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="Trained model to start from: a folder, a composition, a shipped model.", metavar="FOLDER"
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option("--train", help="With --from: all of the model, or its composition.", metavar="all|composition"),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the small run.")] = None,
    output: Annotated[
        str | None, typer.Option(help="Folder for checkpoints, metrics and the model.", metavar="PATH")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue from the last good checkpoint of the output folder, or start if it has none."
        ),
    ] = False,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key, as in --set recipe.learning_rate=1e-3. Repeatable."),
    ] = None,
) -> None:
    """Train a model: on a text, on images, or as a YAML file says (docs/config-reference.md has every key).

    Without any of them it trains a tiny model on the source files of Python's standard library, for minutes.

    It says first what it trains, for about how long and where it writes. Ctrl-C stops it at a checkpoint, and the line
    that goes on from there is printed. No earlier run is overwritten.

    Examples:

        dcinterp train --text my-novel.txt

        dcinterp train --images digits --steps 300

        dcinterp train configs/shipped-models.yaml \\
            --output runs/baseline --preset tiny-transformer++

        dcinterp compose my-llama --output my-llama-composed

        dcinterp train --from my-llama-composed --train composition \\
            --text my-novel.txt

        dcinterp train runs/my-novel/config.yaml --resume

        torchrun --nproc_per_node 2 \\
            -m dcinterp train configs/shipped-models.yaml
    """
    from dcinterp.support.errors import UserError
    from dcinterp.support.paths import path_of
    from dcinterp.train.config.default_run import apply_data_flags
    from dcinterp.train.config.recipe import apply_override, build_config, read_tree, require_ranges, set_key, unshared

    for flag, path in (("text", text), ("images", images), ("output", output)):
        if path is not None and not path.strip():
            raise UserError(f"--{flag} is empty; give a path, or leave it out.")
    tree = apply_data_flags(read_tree(config) if config else {}, text, "" if images == "digits" else images)
    if config is None and preset is not None and not preset.startswith("tiny-"):
        # Layers and rate of the small run are of the tiny models; a preset of another size has its own.
        tree["model"].pop("changes")
        tree.pop("recipe")
    if start is not None:
        if preset is not None:
            raise UserError("Give --from or --preset, not both; a run starts from one model.")
        section = tree.setdefault("model", {})
        if config is None:
            section.clear()  # the small run's own model
    flags = {"output": output, "model.preset": preset, "model.start": start, "model.train": part}
    if steps is not None:
        if config is not None:
            raise UserError("--steps is for runs without a file; write the steps into the phases of the file.")
        tree["data"]["phases"][0]["steps"] = steps
    tree = unshared(tree)
    said = tree.get("output")
    for each in override or []:
        apply_override(tree, each)
    # Flags come last: they win over the file and over --set. They are texts as they are, and no YAML.
    for key, value in flags.items():
        if value is not None:
            set_key(tree, key, str(value))
    resolved = build_config(tree)
    require_ranges(resolved.recipe)
    if resume and config is not None and config.name == "config.yaml" and resolved.output == said:
        _require_not_moved(config, path_of(resolved.output))
    resolved = replace(resolved, output=str(path_of(resolved.output)))

    # Only now, since these take seconds to import: what is wrong with a config is said before.
    from dcinterp.checkpoints.composition import open_start
    from dcinterp.checkpoints.names import is_composition
    from dcinterp.support.progress import Cancelled
    from dcinterp.train.control.signals import stop_on_signals
    from dcinterp.train.loop.divergence import TrainingDiverged
    from dcinterp.train.loop.run import train
    from dcinterp.train.loop.run_summary import RunSummary, resume_command
    from dcinterp.train.loop.trainer import processes

    if not processes().is_main_process:
        try:
            train(resolved, resume=resume, open_start=open_start)
        except TrainingDiverged:
            raise SystemExit(1) from None  # the main process says it
        return
    # Of several processes each gets the signals, and the launcher ends them all.
    catching = stop_on_signals if processes().num_processes == 1 else nullcontext

    def begin(run: RunSummary) -> None:
        for sentence in run.sentences(resuming=resume):
            typer.echo(sentence)

    try:
        with show_progress("step", lines=sys.stdout) as shown, catching(shown) as progress:
            folder = train(resolved, resume=resume, progress=progress, begin=begin, open_start=open_start)
    except Cancelled as reason:
        line = resume_command(Path(resolved.output))
        typer.echo(f"Stopped at a checkpoint ({reason}); to go on: {line}", err=True)
        raise SystemExit(130) from None
    except TrainingDiverged as diverged:
        typer.echo(f"dcinterp: {diverged}", err=True)
        raise SystemExit(1) from None
    typer.echo(f"Trained model: {folder}")
    if not (folder / "tokenizer.json").is_file() and not is_composition(folder):
        typer.echo(f"Look inside:   python -c 'import dcinterp; dcinterp.load(\"{folder}\")'")
        return
    typer.echo(f"Look inside:   dcinterp app {shlex.quote(str(folder))}")


def _require_not_moved(config: Path, output: Path) -> None:
    """Refuse to start from nothing in `output` where the config lies in the folder of a run that could go on."""
    from dcinterp.support.errors import UserError
    from dcinterp.support.paths import path_of
    from dcinterp.train.loop.checkpoints import steps_in

    own = path_of(config).parent
    if steps_in(own / "checkpoints") and not steps_in(output / "checkpoints"):
        raise UserError(
            f"{config} lies beside the checkpoints of a run, but its output is {output}, which has none: the run was "
            f"moved, or started from another folder. To go on with it, give --output {shlex.quote(str(own))} as well."
        )
