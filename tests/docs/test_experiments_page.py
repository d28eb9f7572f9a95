"""The tables of docs/experiments.md say what became of every hypothesis, and which ways return over seeds.

UPDATE_DOCS=1 pytest tests/docs/test_experiments_page.py rewrites it.
"""

from __future__ import annotations

from pathlib import Path

from sitetools.marked import require_part

from dcinterp.evidence.motifs import motif_table, motifs
from dcinterp.evidence.verdicts import verdict_rows, verdict_table
from dcinterp.train.control.experiment_file import FILE, read_experiment

ROOT = Path(__file__).parents[2]


def test_the_table_is_that_of_the_experiments() -> None:
    read = [read_experiment(file) for file in sorted((ROOT / "experiments").glob(f"*/{FILE}"))]
    require_part(ROOT / "docs" / "experiments.md", "verdicts", verdict_table(verdict_rows(read), "experiments"))


def test_the_ways_are_those_that_were_measured() -> None:
    read = [read_experiment(file) for file in sorted((ROOT / "experiments").glob(f"*/{FILE}"))]
    require_part(ROOT / "docs" / "experiments.md", "ways", motif_table(motifs(read), "experiments"))


def test_every_experiment_with_a_page_stands_in_the_list() -> None:
    text = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    listed = text.split("## How the numbers are made")[0]
    pages = [page.name for page in sorted((ROOT / "docs" / "experiments").glob("*.md"))]
    assert [name for name in pages if f"(experiments/{name})" not in listed] == []
