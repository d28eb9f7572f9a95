"""The tables of docs/hooks.md are generated from the hooks of a running model.

UPDATE_DOCS=1 pytest tests/docs/test_hook_tables.py rewrites them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sitetools import tables
from sitetools.marked import require_part

PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"


@pytest.mark.parametrize(
    ("name", "text"),
    [("hooks", tables.composition_table), ("standard hooks", tables.standard_table)],
    ids=["composition", "standard"],
)
def test_the_table_is_what_the_model_shows(name, text):
    require_part(PAGE, name, text())
