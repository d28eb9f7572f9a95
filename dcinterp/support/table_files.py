"""Tables on the disk that are there as a whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dcinterp.support.errors import UserError
from dcinterp.support.text import shown
from dcinterp.support.whole_files import whole

if TYPE_CHECKING:
    import pandas as pd


def require_numbers(table: pd.DataFrame, columns: Sequence[str], path: Path) -> None:
    """Refuse a cell that is no number, where a column holds numbers.

    Raises:
        UserError: the message names the file, its line and the column.
    """
    import pandas as pd

    for column in columns:
        wrong = table.index[pd.to_numeric(table[column], errors="coerce").isna() & table[column].notna()]
        if len(wrong):
            cell = table[column][wrong[0]]
            raise UserError(f"{path} has {shown(cell)} in line {wrong[0] + 2}, column {column!r}; it must be a number.")


def write_table(rows: pd.DataFrame, path: Path) -> None:
    """Write a csv file without the index; what was there stays until all of it is written, whoever else writes too."""
    with whole(path) as aside:
        rows.to_csv(aside, index=False)
