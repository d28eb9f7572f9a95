"""Tables as CSV that is read back as it was written."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def quoting(frame: pd.DataFrame) -> Any:
    """What `to_csv` is to quote: all text where some has a carriage return, which ends a line if it is not quoted."""
    texts = (each for name in frame for each in frame[name] if isinstance(each, str))
    return csv.QUOTE_NONNUMERIC if any("\r" in each for each in texts) else csv.QUOTE_MINIMAL
