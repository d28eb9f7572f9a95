"""The metrics.jsonl of a training run, which may be growing while it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dcinterp.support.errors import UserError


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every whole line, in order; a last line that is being written is left for the next time.

    Raises:
        UserError: there is no such file.
    """
    if not path.is_file():
        raise UserError(f"There is no {path}; give the output folder of a training run or a shipped model.")
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found
