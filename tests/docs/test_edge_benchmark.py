"""The tables of docs/analyses/edges.md are those of the benchmark that ships with the package.

UPDATE_DOCS=1 pytest tests/docs/test_edge_benchmark.py rewrites them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sitetools.marked import require_part

from dcinterp.mechanism import edge_benchmark

PAGE = Path(__file__).parents[2] / "docs" / "analyses" / "edges.md"


@pytest.mark.parametrize("stage", ["post", "pre"])
def test_the_table_is_that_of_the_benchmark(stage):
    require_part(PAGE, f"edges predicted, {stage}", edge_benchmark.table(stage))
