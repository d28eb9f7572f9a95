"""What the runs of a table were trained with, and whether they read one text, in a sentence for the page."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dcinterp.support.source_commit import CHANGED
from dcinterp.train.control.experiment import Experiment, reported_runs

MOST_COMMITS = 4


def made_with_line(experiment: Experiment, first: Experiment | None = None) -> str:
    """PyTorch, devices, commits and data of the reported runs, as far as the table's rows have them; else nothing.

    Args:
        experiment: whose table is told.
        first: of the first seeds, where this one repeats them: their data is compared.
    """
    rows = reported_runs(experiment)
    if "torch" not in rows or not (known := rows[rows["torch"].notna()]).shape[0]:
        return ""  # the rows of an earlier version
    some = "" if len(known) == len(rows) else f" of {len(known)} of the {len(rows)} runs"
    parts = [f"PyTorch {', '.join(_values(known, 'torch'))}"]
    if devices := _values(known, "device"):
        parts.append(f"on {', '.join(devices)}")
    commits = _values(known, "commit")
    if len(commits) > MOST_COMMITS:
        parts.append(f"at {len(commits)} commits of dcinterp (column `commit`)")
    elif commits:
        changed = " (+: its code was changed since)" if any(each.endswith(CHANGED) for each in commits) else ""
        parts.append(f"at commit{'s' * (len(commits) > 1)} {', '.join(commits)} of dcinterp{changed}")
    return f"Trained with {', '.join(parts)}, by the table's rows{some}.{_data(known, first)}"


def _data(rows: pd.DataFrame, first: Experiment | None) -> str:
    """Whether they read the same text or images as each other, and as the first seeds; nothing of what is made."""
    found = _values(rows, "data_digest")
    if not found:
        return ""
    if len(found) > 1:
        return f" They read {len(found)} texts or sets of images (column `data_digest`)."
    earlier = _values(reported_runs(first), "data_digest") if first else []
    same = ", as the first seeds did" if earlier == found else ""
    other = f" The first seeds read {', '.join(earlier)}." if earlier and earlier != found else ""
    return f" All of these read the same text or images (digest {found[0]}){same}.{other}"


def _values(rows: pd.DataFrame, column: str) -> Sequence[str]:
    """The different ones of a column, in order, without blanks; of a run that went on elsewhere a cell has several."""
    cells = rows[column].dropna() if column in rows else []
    return list(dict.fromkeys(word for cell in cells for word in str(cell).split()))
