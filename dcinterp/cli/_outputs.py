"""What verbs write: refused before the work begins, written whole or not at all, and JSON that any reader takes."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from dcinterp.errors import UserError


def require_file_place(path: Path | None) -> None:
    """Raise a UserError if no file can be written at `path`: better now than after the work."""
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file to write.")
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent} to write {path.name} into; make it, or give another path.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{path} may not be written by you; give another path.")


def require_folder_place(path: Path | None, *, ours: Callable[[Path], bool] = lambda path: False) -> None:
    """Raise a UserError if `path` cannot become a folder of ours.

    Args:
        path: a folder that is new or empty, or that may be replaced.
        ours: whether a folder with files in it holds only what we wrote there before.
    """
    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; give the name of a folder to write.")
    if path.is_dir() and any(path.iterdir()) and not ours(path):
        raise UserError(f"{path} holds other files; give another folder, or empty it first.")
    above = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not above.is_dir():
        raise UserError(f"{above} is a file, so {path} cannot be made; give another folder.")
    if not os.access(above, os.W_OK):
        raise UserError(f"{above} may not be written by you; give another folder.")


def is_result(path: Path) -> bool:
    """Whether a folder holds a saved result and nothing else."""
    from dcinterp.analysis.result import RECORD, TENSORS

    entries = list(path.iterdir())
    return (path / RECORD).is_file() and all(
        is_result(entry) if entry.is_dir() else entry.name in (RECORD, TENSORS) for entry in entries
    )


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place beside `path`, whose file or folder takes the name of `path` when the block ends well.

    What was there stays until then, and stays when the block fails or is stopped.
    """
    path = path.resolve()
    if path.exists() and not (path.is_file() or path.is_dir()):  # a device, such as /dev/stdout
        yield path
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield beside
        if path.is_dir():
            shutil.rmtree(path)
        beside.replace(path)
    finally:
        if beside.is_dir():
            shutil.rmtree(beside)
        beside.unlink(missing_ok=True)


def print_json(data: Any) -> None:
    """One JSON document on standard output; numbers that JSON has no word for (NaN, infinity) become null."""
    typer.echo(json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, indent=1))


def compact_json(data: Any) -> str:
    """The same on one line, for what holds whole tensors."""
    return json.dumps(_finite(data), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
