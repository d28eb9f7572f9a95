"""Prepared data on the disk: made once, whole or absent, found again by what it was made from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from dcinterp.support.digest import json_digest
from dcinterp.support.errors import UserError

VARIABLE = "DCINTERP_CACHE"


def cache_folder() -> Path:
    """$DCINTERP_CACHE, or `dcinterp` in the user's cache folder."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dcinterp"


def find_or_make(kind: str, made_from: Any, make: Callable[[Path], None]) -> Path:
    """The folder that `make` filled for the same `made_from` (plain data) before, or fills now.

    Raises:
        UserError: the cache cannot be written.
    """
    key = json_digest(made_from, 12)
    folder = cache_folder() / kind / key
    if folder.is_dir():
        return folder
    aside = folder.with_name(f"{key}-{uuid4().hex[:8]}")
    try:
        aside.mkdir(parents=True)
        make(aside)
        try:
            aside.replace(folder)
        except OSError:
            # Another process was faster, and made the same.
            if not folder.is_dir():
                raise
    except OSError as error:
        # numpy says how much of an array was written, and not why it ended there.
        why = os.strerror(error.errno) if error.errno else f"the disk is full: {error}"
        raise UserError(
            f"The prepared data cannot be kept in {folder.parent} ({why}); make room there, or name another place "
            f"with {VARIABLE}."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def require_whole(folder: Path, record: str, arrays: list[str]) -> dict[str, Any]:
    """The record of prepared data, whose files can be read.

    Raises:
        UserError: one is missing or was cut short.
    """
    try:
        for name in arrays:
            np.load(folder / name, mmap_mode="r")
        return json.loads((folder / record).read_text(encoding="utf-8"))
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"The prepared data in {folder} are damaged ({error}); delete that folder.") from error


def fingerprint_files(files: list[Path], root: Path) -> list[list[Any]]:
    """What tells a set of files from another version of itself, without reading them."""
    return [[str(path.relative_to(root)), *file_version(path)] for path in files]


def file_version(path: Path) -> tuple[int, int, int]:
    """What tells a file from another version of itself, without reading it.

    The time of the last change (ctime) is among it: a file may be written over with its size and its mtime kept.
    """
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
