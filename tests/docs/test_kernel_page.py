"""The tables of docs/kernel.md are those of the measurements beside it.

UPDATE_DOCS=1 pytest tests/docs/test_kernel_page.py writes them (as `dcinterp bench all --read` does).
"""

import json
import os
import re
from pathlib import Path

from dcinterp.bench.gpu import table
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


def test_the_table_of_a_gpu_is_that_of_its_measurements() -> None:
    first, *lines = map(json.loads, (DOCS / "gpu-bench.jsonl").read_text().splitlines())
    page = DOCS / "kernel.md"
    text, marks = (
        page.read_text(encoding="utf-8"),
        re.compile(r"(<!-- gpu: [^\n]*-->\n)(.*?)(<!-- end of gpu -->)", re.S),
    )
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(marks.sub(lambda found: f"{found[1]}{table(lines)}\n{found[3]}", text), encoding="utf-8")
        text = page.read_text(encoding="utf-8")
    found = marks.search(text)
    assert found is not None
    assert found[2] == f"{table(lines)}\n", f"docs/kernel.md: run UPDATE_DOCS=1 pytest {__file__}"
    assert first["gpu"] in text
