"""The tables of docs/hooks.md are generated from the hooks of a running model.

UPDATE_DOCS=1 pytest tests/docs/test_hook_tables.py rewrites them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from sitetools import tables

PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"


@pytest.mark.parametrize(
    ("name", "text"),
    [("hooks", tables.composition_table), ("standard hooks", tables.standard_table)],
    ids=["composition", "standard"],
)
def test_the_table_is_what_the_model_shows(name, text):
    whole = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {name}: [^\n]*-->\n)(.*?)(<!-- end -->)", re.S)
    expected = pattern.sub(lambda m: f"{m[1]}{text()}\n{m[3]}", whole)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(expected, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == expected, "docs/hooks.md: run this file with UPDATE_DOCS=1"
