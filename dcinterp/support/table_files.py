"""Tables on the disk that are there as a whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dcinterp.support.whole_files import whole

if TYPE_CHECKING:
    import pandas as pd


def write_table(rows: pd.DataFrame, path: Path) -> None:
    """Write a csv file without the index; what was there stays until all of it is written, whoever else writes too."""
    with whole(path) as aside:
        rows.to_csv(aside, index=False)
