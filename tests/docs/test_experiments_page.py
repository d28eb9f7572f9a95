"""What the documents have of all experiments: every verdict, ways that return over seeds, what was asked once.

UPDATE_DOCS=1 pytest tests/docs/test_experiments_page.py rewrites them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sitetools.marked import require_part

from dcinterp.evidence.motifs import motif_table, motifs
from dcinterp.evidence.verdicts import not_repeated, verdict_rows, verdict_table
from dcinterp.train.control.experiment import Experiment
from dcinterp.train.control.experiment_file import FILE, read_experiment

ROOT = Path(__file__).parents[2]
FOUND, ALL = (ROOT / "docs" / name for name in ("experiments.md", "experiments-all.md"))


@pytest.fixture(scope="module")
def experiments() -> list[Experiment]:
    return [read_experiment(file) for file in sorted((ROOT / "experiments").glob(f"*/{FILE}"))]


def test_the_table_is_that_of_the_experiments(experiments: list[Experiment]) -> None:
    require_part(ALL, "verdicts", verdict_table(verdict_rows(experiments), "experiments"))


def test_what_was_not_asked_again_is_named(experiments: list[Experiment]) -> None:
    require_part(FOUND, "once", not_repeated(experiments))


def test_the_ways_are_those_that_were_measured(experiments: list[Experiment]) -> None:
    require_part(ALL, "ways", motif_table(motifs(experiments), "experiments"))


def test_every_experiment_with_a_page_stands_in_the_list() -> None:
    listed = FOUND.read_text(encoding="utf-8")
    pages = [page.name for page in sorted((ROOT / "docs" / "experiments").glob("*.md"))]
    assert [name for name in pages if f"(experiments/{name})" not in listed] == []


def test_the_readme_counts_the_pages() -> None:
    pages = len(list((ROOT / "docs" / "experiments").glob("*.md")))
    assert f"of the {pages} experiments with a page here" in (ROOT / "README.md").read_text(encoding="utf-8")
