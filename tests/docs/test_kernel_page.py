"""The tables of docs/kernel.md are those of the measurements beside it.

UPDATE_DOCS=1 pytest tests/docs/test_kernel_page.py writes them (as `dcinterp bench all --read` does).
"""

import os
from pathlib import Path

from dcinterp.bench.record import KINDS, MARKS, _jobs, page_tables, read_record, write_page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_tables_are_those_of_the_measurements() -> None:
    record, page = read_record(DOCS / "kernel-bench.json"), DOCS / "kernel.md"
    if os.environ.get("UPDATE_DOCS"):
        write_page(page, record)
    found = MARKS.search(page.read_text(encoding="utf-8"))
    assert found is not None
    assert found[2] == f"{page_tables(record)}\n", f"docs/kernel.md: run UPDATE_DOCS=1 pytest {__file__}"


def test_all_that_the_page_promises_was_measured() -> None:
    measured = read_record(DOCS / "kernel-bench.json")["measurements"]
    assert {(each["kind"], each["threads"]) for each in measured} >= {(kind, 1) for kind in KINDS}


def test_the_measurements_are_known_by_name_and_not_made_again() -> None:
    record = read_record(DOCS / "kernel-bench.json")
    names = [each["job"].removesuffix(", ") for each in record["measurements"] if each["threads"] == 1]
    assert sorted(names) == sorted(job.name for job in _jobs(record["rounds"]))
