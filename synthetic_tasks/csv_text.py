"""Tables as CSV that is read back as it was written."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def csv_text(frame: pd.DataFrame) -> str:
    """A table as CSV; all text is quoted where some has a carriage return, which ends a line if it is not."""
    texts = (each for name in frame for each in frame[name] if isinstance(each, str))
    quoting = csv.QUOTE_NONNUMERIC if any("\r" in each for each in texts) else csv.QUOTE_MINIMAL
    return str(frame.to_csv(index=False, quoting=quoting))


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as `csv_text`."""
    path.write_text(csv_text(frame), encoding="utf-8", newline="")
