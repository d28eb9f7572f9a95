"""`dcinterp convert`: between the released checkpoint layouts and ours."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

# Whatever a tokenizer may consist of.
TOKENIZER_FILES = "tokenizer* special_tokens_map.json added_tokens.json vocab.* merges.txt *.model chat_template.jinja"


class Layout(StrEnum):
    """Where a checkpoint can be converted to."""

    ours = "ours"
    dcformer = "dcformer"
    dcpythia = "dcpythia"


class Precision(StrEnum):
    """How weights can be stored."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def command(
    source: Annotated[Path, typer.Argument(help="Folder with config.json and weights, in any of the layouts.")],
    target: Annotated[Path, typer.Argument(help="Folder to write; it must be empty or not exist.")],
    to: Annotated[Layout, typer.Option(help="Layout to write.")] = Layout.ours,
    dtype: Annotated[Precision | None, typer.Option(help="Store the weights as this; as they are by default.")] = None,
) -> None:
    """Convert a released checkpoint to our layout, which transformers reads, or back. The tokenizer goes along.

    Examples:

        dcinterp convert DCFormer-2.8B dcformer-2.8b

        dcinterp convert dcformer-2.8b released --to dcformer --dtype float16
    """
    import torch

    from dcinterp.errors import UserError
    from dcinterp.loading import read_model
    from dcinterp.model.checkpoints import write_foreign

    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists and is not empty; give another folder, or empty it first.")
    model = read_model(source, dtype=getattr(torch, dtype.value) if dtype is not None else None)
    if to == Layout.ours:
        model.save_pretrained(target)
    else:
        write_foreign(model, target, to.value)
    for pattern in TOKENIZER_FILES.split():
        for file in source.glob(pattern):
            shutil.copy(file, target)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    typer.echo(f"{target}: {parameters:,} parameters, layout {to.value}")
