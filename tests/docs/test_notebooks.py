"""Every notebook runs from top to bottom, as a reader would run it."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "analyses").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, monkeypatch):
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    # Figures go into the notebook as data; nothing opens.
    monkeypatch.setitem(os.environ, "PLOTLY_RENDERER", "plotly_mimetype")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert "def " not in cell.source, "functions belong into the package"
