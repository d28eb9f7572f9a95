"""`dcinterp convert`: between the released checkpoint layouts and ours."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dcinterp.checkpoints.names import OWN, layout_names, refuse_others
from dcinterp.cli._models import model_folder, model_names
from dcinterp.cli._outputs import print_json, require_folder_place
from dcinterp.support.errors import UserError, require_known
from dcinterp.support.paths import path_of
from dcinterp.support.whole_files import whole

OURS = "ours"
"""What `--to` calls our own layout."""


class Precision(StrEnum):
    """How weights can be stored."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def command(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder with config.json and weights, in any layout, or a shipped model.", autocompletion=model_names
        ),
    ],
    target: Annotated[Path, typer.Argument(help="Folder to write; it must be empty or not exist.")],
    to: Annotated[
        str, typer.Option(help=f"Layout to write: ours, {' or '.join(layout_names())}.", metavar="LAYOUT")
    ] = OURS,
    dtype: Annotated[Precision | None, typer.Option(help="Store the weights as this; as they are by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: folder, layout, dtype, parameters.")] = False,
) -> None:
    """Convert a released checkpoint to our layout, which transformers reads, or back.

    The tokenizer goes along. The folder is written whole or not at all.

    Examples:

        dcinterp convert dcformer++ released --to dcformer --dtype float16

        dcinterp convert released ours
    """
    import torch

    from dcinterp.checkpoints.fit import require_finite
    from dcinterp.checkpoints.layouts import write_foreign
    from dcinterp.checkpoints.read import read_model
    from dcinterp.checkpoints.tokenizer_files import copy_tokenizer

    require_known("layout", to, (OURS, *layout_names()))
    require_folder_place(target)
    refuse_others(path_of(str(source).removeprefix(OWN)))
    folder = model_folder(source)
    model = read_model(folder, dtype=getattr(torch, dtype.value) if dtype is not None else None)
    if dtype is not None and not all(bool(weight.isfinite().all()) for weight in model.parameters()):
        require_finite(read_model(folder), source)
        raise UserError(
            f"{source} has weights that are too large for {dtype.value}; store them as bfloat16 or float32."
        )
    require_finite(model, source)
    with whole(target) as place:
        if to == OURS:
            model.save_pretrained(place)
        else:
            write_foreign(model, place, to)
        copy_tokenizer(folder, place)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if as_json:
        kind = str(next(model.parameters()).dtype).removeprefix("torch.")
        print_json({"folder": str(target), "layout": to, "dtype": kind, "parameters": parameters})
        return
    typer.echo(f"{target}: {parameters:,} parameters, layout {to}")
