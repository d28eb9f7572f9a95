"""The page of the app names the files that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_part_of_the_workbench_is_named() -> None:
    page = (ROOT / "docs" / "app.md").read_text(encoding="utf-8")
    table = page[page.index("| part | file in `app/workbench/` |") :].partition("\n\n")[0]
    files = {path.name for path in (ROOT / "app" / "workbench").glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"`(\w+\.py)`", table)) == files
