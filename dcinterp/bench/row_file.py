"""The rows of a measurement that goes on where it was stopped: a file with a JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a file, none where there is no file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def add_row(out: TextIO, row: dict[str, Any]) -> None:
    """Write a row at once, so that what is stopped after it keeps it."""
    out.write(json.dumps(row) + "\n")
    out.flush()


def write_rows(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write all rows anew; the file is the old one until the new one is whole."""
    beside = file.with_name(file.name + ".part")
    beside.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    beside.replace(file)
