"""Ships a finished pair of runs of configs/source-code.yaml: weights in half precision, logs, and edges over training.

    make code-models RUNS=runs        # reads runs/code-dcformer++ and runs/code-transformer++

The README.md and prompts.json of each model are written by hand, and stay.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from dcinterp.analysis.training.training_edges import composition_edges, measure_edges, name_of, training_edges
from dcinterp.checkpoints.load import load
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.checkpoints.read import read_model
from dcinterp.checkpoints.tokenizer_files import copy_tokenizer
from dcinterp.mechanism.intervention_hooks import references
from dcinterp.support.progress import console
from dcinterp.train.data.held_out import held_out_documents

PAIR = ("dcformer++", "transformer++")
WATCHED, EVERY = 2, 2
"""Every which of the watched checkpoints ships, and every which is measured edge by edge."""
MEASURED, REFERENCE, CHOSEN_ON = 16, 16, 8
"""Held-out documents that the effects are measured on, that the means are of, and that the edges are chosen by."""
EDGES = 24
RUN = "runs/code-{}"
"""What ships calls a run by the folder of docs/code-models.md, wherever it was."""


def ship(run: Path, name: str) -> Path:
    """Write the model of a finished run into the package, with its log; returns the folder."""
    target = SHIPPED / f"{name}-code"
    read_model(run / "model", dtype=torch.float16).save_pretrained(target)
    copy_tokenizer(run / "model", target)
    config = (run / "config.yaml").read_text(encoding="utf-8")
    named = re.sub("^output: .*$", f"output: {RUN.format(name)}", config, flags=re.MULTILINE)
    (target / "training.yaml").write_text(named, encoding="utf-8")
    shutil.copyfile(run / "metrics.jsonl", target / "metrics.jsonl")
    shutil.rmtree(target / "watch", ignore_errors=True)
    (target / "watch").mkdir()
    for file in sorted((run / "watch").glob("step-*"))[::-1][::WATCHED]:
        shutil.copyfile(file, target / "watch" / file.name)
    return target


def strongest_edges(run: Path, count: int = EDGES) -> list[str]:
    """The edges that matter most to the trained model, on documents that are used for nothing else."""
    bridge = load(str(run / "model"))
    documents = held_out_documents(run, MEASURED + REFERENCE + CHOSEN_ON)
    edges = composition_edges(bridge)
    others = [ids for ids, _ in documents[MEASURED : MEASURED + REFERENCE]]
    values = references(bridge, edges, 1, reference=others)
    _, _, effect, _ = measure_edges(bridge, documents[-CHOSEN_ON:], edges, values, CHOSEN_ON)
    return [name_of(edges[place]) for place in effect.mean(-1).topk(count).indices.tolist()]


def main(runs: Annotated[Path, typer.Argument(help="Folder with code-dcformer++ and code-transformer++.")]) -> None:
    """Ship both models, and measure the edges of the composed one over its checkpoints: some fifteen minutes."""
    for name in PAIR:
        typer.echo(ship(runs / f"code-{name}", name))
    composed = runs / f"code-{PAIR[0]}"
    with console("edges") as progress:
        found = training_edges(
            composed,
            edges=strongest_edges(composed),
            every=EVERY,
            documents=MEASURED,
            reference=REFERENCE,
            batch_size=MEASURED,
            progress=progress,
        )
    named = RUN.format(PAIR[0])
    assert found.call is not None
    found = replace(found, run=named, call=replace(found.call, arguments={**found.call.arguments, "run": named}))
    typer.echo(found.save(SHIPPED / f"{PAIR[0]}-code" / "training_edges"))
    typer.echo("\n".join(found.sentences()))


if __name__ == "__main__":
    typer.run(main)
