"""The option of commands that run many runs."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

Engine: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Where runs run: local, stacked:cuda (or :cpu), dask, dask:ADDRESS of a scheduler.", metavar="ENGINE"
    ),
]
