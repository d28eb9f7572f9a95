"""Tables on the disk that are there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def write_table(rows: pd.DataFrame, path: Path) -> None:
    """Write a csv file without the index; what was there stays until all of it is written, whoever else writes too."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        rows.to_csv(aside, index=False)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
