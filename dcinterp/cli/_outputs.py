"""The outputs of verbs: refused before the work begins, written whole or not at all, and standard JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dcinterp.support.errors import UserError, shortened
from dcinterp.support.json_files import read_json_object
from dcinterp.support.whole_files import UNFINISHED, whole

if TYPE_CHECKING:
    from dcinterp.results.result import Result


def require_different(*paths: Path | None) -> None:
    """Raise a UserError if two outputs, or an output and what is read, are one file: the later would replace it."""
    places = [path.resolve() for path in paths if path is not None]
    # A device, such as that of the screen, takes everything.
    places = [place for place in places if place.is_file() or place.is_dir() or not place.exists()]
    for number, place in enumerate(places):
        for other in places[number + 1 :]:
            if place == other:
                raise UserError(f"Two outputs go to {place}, or one to what is read; give different paths.")
            inside, around = (other, place) if place in other.parents else (place, other)
            if around in inside.parents:
                raise UserError(f"{inside} lies inside {around}, which is made anew; give different paths.")


LONGEST_NAME = 200
"""Bytes of a file's name: beside it stands one that is longer while it is written, and 255 are all there are."""


def require_file_place(path: Path | None, *, only: str = "") -> None:
    """Raise a UserError if no file can be written at `path`: better now than after the work.

    only: the ending that a file which is there must have, so that somebody's notes are not replaced by a table.
    """
    if path is None:
        return
    if str(path) == "-":
        raise UserError("There is no output to the screen here by the name -; give the name of a file.")
    if len(path.name.encode()) > LONGEST_NAME:
        raise UserError(f"{shortened(path.name, 60)} is too long for the name of a file; give a shorter one.")
    if only and path.is_file() and path.stat().st_size and path.suffix.lower() != only:
        raise UserError(f"{path} is there and is no {only} file, so that it may be yours; give another path.")
    _require_expanded(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file to write.")
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent} to write {path.name} into; make it, or give another path.")
    if path.exists() and not os.access(path, os.W_OK):
        raise UserError(f"{path} may not be written by you; give another path.")
    if not (path.exists() and not path.is_file()):  # a device is written in place, a file is made beside it
        _require_writable(path.resolve().parent)


def require_folder_place(
    path: Path | None, *, ours: Callable[[Path], bool] = lambda path: False, anew: bool = True
) -> None:
    """Raise a UserError if `path` cannot become a folder of ours.

    Args:
        path: a folder that is new or empty, or that may be replaced.
        ours: whether a folder with files in it holds nothing that we may not write over.
        anew: whether the folder is made anew beside what is there, as `whole` does; else files are written into it.
    """
    if path is None:
        return
    _require_expanded(path)
    if anew and path.resolve() == Path.cwd():
        raise UserError(f"{path} is the folder that you are in, and would be made anew; give the name of another one.")
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; give the name of a folder to write.")
    if path.is_dir() and any(path.iterdir()) and not ours(path):
        raise UserError(f"{path} holds other files; give another folder, or empty it first.")
    place = path.resolve()
    above = next(folder for folder in (*([] if anew else [place]), *place.parents) if folder.exists())
    if not above.is_dir():
        raise UserError(f"{above} is a file, so {path} cannot be made; give another folder.")
    _require_writable(above)


def _require_expanded(path: Path) -> None:
    """Refuse a path that the shell has left as it was typed: it would become a folder named ~."""
    if str(path).startswith("~"):
        raise UserError(f"{path} begins with a ~ that the shell did not replace; write the whole path.")


def _require_writable(folder: Path) -> None:
    if not os.access(folder, os.W_OK):
        raise UserError(f"The folder {folder} may not be written by you; give another path.")


def require_result_place(path: Path | None, kind: str) -> None:
    """Raise a UserError if a result of this kind cannot be saved at `path` without loss of anything else.

    A folder that holds an earlier result of the same kind, and nothing beside it, is replaced.
    """
    if path is None:
        return
    from dcinterp.results.result import require_own

    require_folder_place(path, ours=is_result)
    require_own(path, kind)


def require_figure_place(path: Path | None) -> None:
    """Raise a UserError if no figure can be written at `path`."""
    if path is not None and path.suffix not in (".html", ".png", ".svg"):
        raise UserError(f"--figure writes .html, .png or .svg files, not {path.name}.")
    require_file_place(path)


def write_figure(result: Result, path: Path | None, kind: str = "") -> None:
    """Draw a result to a file, if one is given: a page with what made it, or an image."""
    if path is None:
        return
    from dcinterp import figures
    from dcinterp.figures.base import export

    drawn = figures.plot(result, kind=kind)
    data = export.page(result, drawn) if path.suffix == ".html" else export.image(drawn, path.suffix[1:])
    with whole(path) as place:
        place.write_bytes(data)


def is_result(path: Path) -> bool:
    """Whether a folder holds a saved result and nothing else."""
    from dcinterp.results.result import RECORD, TENSORS

    if not (path / RECORD).is_file():
        return False
    try:
        named = read_json_object(path / RECORD, ours=True).get("parts")
    except UserError:
        named = None
    parts = named if isinstance(named, list) else []
    return all(
        entry.name in parts and is_result(entry) if entry.is_dir() else entry.name in (RECORD, TENSORS)
        for entry in path.iterdir()
        if not fnmatch(entry.name, UNFINISHED)
    )


def save_result(result: Result, folder: Path | None) -> None:
    """Save a result, if a folder is given, unless something else has come to lie there since the work began."""
    if folder is None:
        return
    require_result_place(folder, type(result).__name__)
    with whole(folder) as place:
        result.save(place)


def print_json(data: Any) -> None:
    """One JSON document on standard output; numbers that JSON has no word for (NaN, infinity) become null."""
    typer.echo(json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, indent=1))


def print_result_json(result: Result) -> None:
    """A result as one JSON document: its fields, tensors as nested lists, warnings, and how it was made.

    On one line, because it holds whole tensors.
    """
    typer.echo(json.dumps(_finite(_as_data(result)), ensure_ascii=False, allow_nan=False))


def print_results_json(results: Sequence[Result]) -> None:
    """Several results as one JSON list."""
    typer.echo(json.dumps(_finite([_as_data(each) for each in results]), ensure_ascii=False, allow_nan=False))


def _as_data(result: Result) -> dict[str, Any]:
    from dataclasses import fields

    from torch import Tensor

    data: dict[str, Any] = {"kind": type(result).__name__}
    for name in [f.name for f in fields(result) if f.name != "call"]:
        value = getattr(result, name)
        nested = _as_data(value) if hasattr(value, "to_dataframe") else value
        data[name] = value.tolist() if isinstance(value, Tensor) else nested
    said = result.warnings()
    call = result.call.record() if result.call else None
    return data | {"warnings": said, "banners": said, "call": call}  # banners: the name of version 0.1, until 0.3


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
