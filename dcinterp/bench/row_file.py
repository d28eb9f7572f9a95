"""The rows of a measurement that goes on where it was stopped: a file with a JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from dcinterp.support.errors import UserError
from dcinterp.support.whole_files import whole

BEGINS = '{"key"'
"""How a row of a measurement that goes on begins; what was cut off after that is a row that is made again."""


def read_rows(file: Path, needed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The rows of a file, none where there is no file; a last line that was cut off does not count.

    needed: keys that every row of this measurement has.

    Raises:
        UserError: something else stands there, or a row of another measurement.
    """
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    rows = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except ValueError:
            cut = not line.endswith("\n") and (line.startswith(BEGINS) or (len(line) > 1 and BEGINS.startswith(line)))
            row = {} if cut else None
        if not isinstance(row, dict) or (row and not row.keys() >= set(needed)):
            raise UserError(f"Line {number} of {file} is no row of this measurement; give another file.")
        rows += [row] if row else []
    return rows


def resume_rows(file: Path, needed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The rows of a file that goes on: a last line that was cut off is taken out of it.

    Raises:
        UserError: as `read_rows`.
    """
    rows = read_rows(file, needed)
    if file.exists() and file.read_bytes()[-1:] not in (b"", b"\n"):
        write_rows(file, rows)
    return rows


@contextmanager
def appended(file: Path) -> Iterator[TextIO]:
    """A file that rows are added to; one that is new and got none, as where there is no such model, is not left."""
    new = not file.exists()
    try:
        with file.open("a", encoding="utf-8") as out:
            yield out
    finally:
        if new and file.is_file() and not file.stat().st_size:
            file.unlink()


def add_row(out: TextIO, row: dict[str, Any]) -> None:
    """Write a row at once, so that what is stopped after it keeps it."""
    out.write(json.dumps(row) + "\n")
    out.flush()


def write_rows(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write all rows anew; the file is the old one until the new one is whole."""
    with whole(file) as place:
        place.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
