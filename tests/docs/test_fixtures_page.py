"""The table of docs/fixtures.md is that of the shipped models, and docs/planted-bench.md that of its measurements.

UPDATE_DOCS=1 pytest tests/docs/test_fixtures_page.py rewrites both.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from sitetools.marked import require_part

from dcinterp.bench.planted import METHODS
from dcinterp.bench.planted_page import page_of
from dcinterp.bench.row_file import read_rows
from dcinterp.planted import circuits
from dcinterp.planted.fixtures import FOLDER, stated_of, trained

DOCS = Path(__file__).parents[2] / "docs"


def table() -> str:
    lines = [["model", "task", "borrowed edges", "layers", "steps", "right", "interchange", "outside", "one edge"]]
    lines.append(["---"] * len(lines[0]))
    for name in trained():
        circuit, record = stated_of(name), json.loads((FOLDER / name / "circuit.json").read_text(encoding="utf-8"))
        marks = record["marks"]
        shares = [f"{marks[key]:.1%}" for key in ("accuracy", "interchange", "outside", "worst")]
        carried = (edge for hop in circuit.hops for edge in hop.edges(circuit.stages) if "skip" not in edge)
        edges = ", ".join(dict.fromkeys(carried))
        lines.append([f"`{name}`", circuit.task, edges, str(circuit.layers), str(record["steps"]), *shares])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def test_the_table_is_that_of_the_shipped_models():
    require_part(DOCS / "fixtures.md", "trained", table())


def test_the_page_of_the_bench_is_that_of_its_rows():
    rows = read_rows(DOCS / "planted-bench.jsonl")
    page = DOCS / "planted-bench.md"
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(page_of(rows), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == page_of(rows), "docs/planted-bench.md: run this file with UPDATE_DOCS=1"
    kinds = {row["setting"].split()[0] for row in rows}
    assert kinds == {*circuits(), *trained()}
    assert all(set(row["methods"]) == set(METHODS) for row in rows)
