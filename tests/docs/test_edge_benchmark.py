"""The tables of docs/analyses/edges.md are those of the benchmark that ships with the package.

UPDATE_DOCS=1 pytest tests/docs/test_edge_benchmark.py rewrites them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dcinterp.mechanism import edge_benchmark

PAGE = Path(__file__).parents[2] / "docs" / "analyses" / "edges.md"


@pytest.mark.parametrize("stage", ["post", "pre"])
def test_the_table_is_that_of_the_benchmark(stage):
    whole = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- edges predicted, {stage}: [^\n]*-->\n)(.*?)(<!-- end -->)", re.S)
    assert pattern.search(whole)
    expected = pattern.sub(lambda m: f"{m[1]}{edge_benchmark.table(stage)}\n{m[3]}", whole)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(expected, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == expected, "docs/analyses/edges.md: run this file with UPDATE_DOCS=1"
