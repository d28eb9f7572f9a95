"""Every notebook runs from top to bottom, and is committed with the outputs of such a run."""

from __future__ import annotations

import re

import nbformat
import pytest
from sitetools import notebooks

EACH = pytest.mark.parametrize("path", notebooks.notebooks(), ids=lambda path: path.stem)
LARGEST = 700_000
"""Bytes of a notebook with its pictures; a larger one is hard to review."""


def test_there_are_notebooks():
    assert len(notebooks.notebooks()) >= 9


@EACH
def test_runs(path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebooks.run(path)


@EACH
def test_is_an_article_with_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    assert not any(re.search(r"^\s*def ", cell.source, re.M) for cell in code), "functions belong into the package"
    assert "**What this does not show.**" in "".join(cell.source for cell in notebook.cells[-2:])
    assert "$" not in "".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown"), (
        "no renderer offline"
    )
    assert path.stat().st_size < LARGEST
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run `make notebooks`"
    kinds = [kind for cell in code for output in cell.outputs for kind in output.get("data", {})]
    assert "image/png" in kinds
    assert not any("javascript" in kind or "plotly" in kind for kind in kinds), "figures must show offline"


def test_a_failing_cell_is_named(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x = 1"), nbformat.v4.new_code_cell("x / 0")])
    nbformat.write(notebook, tmp_path / "bad.ipynb")
    with pytest.raises(RuntimeError, match=r"bad\.ipynb, cell 2: ZeroDivisionError"):
        notebooks.run(tmp_path / "bad.ipynb")
