"""What docs/extending.md and docs/app.md tell readers to add is added to a copy of the repository, word for word."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sitetools import blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
LINES = re.findall(r"^    (\S.*)$", PAGE.read_text(encoding="utf-8"), re.M)


def code(page: Path, mark: str) -> str:
    """The one Python block of a page that holds `mark`."""
    found = re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    (block,) = (block for block in found if mark in block)
    return block


def line(start: str) -> str:
    """The line of the page that starts with `start`, as a reader would copy it."""
    (found,) = (each for each in LINES if each.startswith(start))
    return found


def insert(path: Path, before: str, text: str) -> None:
    """Put a line in front of the first one that holds `before`."""
    lines = path.read_text(encoding="utf-8").split("\n")
    place = next(number for number, each in enumerate(lines) if before in each)
    lines.insert(place, re.match(r"\s*", lines[place])[0] + text)
    path.write_text("\n".join(lines), encoding="utf-8")


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The repository with an analysis, its figure, a relation and a way to compose heads, added as the page says."""
    root = tmp_path_factory.mktemp("copy")
    unwanted = shutil.ignore_patterns("__pycache__", "generated", "images", "shipped")
    for part in ("dcinterp", "synthetic_tasks", "tests", "docs", "analyses"):
        shutil.copytree(ROOT / part, root / part, ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "dcinterp" / "checkpoints" / "shipped").symlink_to(ROOT / "dcinterp" / "checkpoints" / "shipped")

    (root / "dcinterp/analysis/attention/look_back.py").write_text(code(PAGE, "class LookBack"))
    drawing = code(PAGE, 'RESULT = "LookBack"').partition("\n\nfigure = ")[0]
    (root / "dcinterp/figures/attention/look_back_grid.py").write_text(f"from typing import Any\n\n{drawing}\n")

    relation = code(PAGE, "RELATION = Relation(").partition("assert")[0]
    (root / "synthetic_tasks/relations/after_next.py").write_text(relation)

    (root / "dcinterp/model/compose/scaled.py").write_text(code(PAGE, "class ScaledCompose"))
    registry = root / "dcinterp/model/compose/__init__.py"
    insert(registry, '"none": None', line('"scaled"'))
    insert(registry, "from dcinterp.model.compose.static", "from dcinterp.model.compose.scaled import ScaledCompose")
    kinds = line("ComposeKind")
    replace(root / "dcinterp/model/config.py", kinds.replace(', "scaled"', ""), kinds)
    return root


def run(copy: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=copy, env=environment, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_contracts_take_what_was_added(copy):
    quiet = ("pytest", "-q", "--numprocesses=0", "-p", "no:cacheprovider", "-rN")
    files = ("tests/contract/test_compose.py", "tests/contract/test_tasks.py", "tests/docs/test_site.py")
    said = run(copy, *quiet, *files, "-k", "scaled or registry or after-next or every_analysis")
    assert int(re.search(r"(\d+) passed", said)[1]) > 90
    assert "failed" not in said


@pytest.mark.slow
def test_a_new_analysis_is_a_verb_with_a_figure(copy, tmp_path):
    options = ("--prompt", "There are a sweater, an elephant. Which is", "--figure", str(tmp_path / "figure.html"))
    shown = run(copy, "dcinterp", "analyze", "look-back", "dcformer++", *options)
    assert "How far heads look back" in shown
    assert "distance (tokens)" in (tmp_path / "figure.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_new_page_runs(monkeypatch, tmp_path):
    from streamlit.testing.v1 import AppTest

    app = tmp_path / "app"
    shutil.copytree(ROOT / "app", app, ignore=shutil.ignore_patterns("__pycache__"))
    page = ROOT / "docs" / "app.md"
    (app / "app_pages" / "rows.py").write_text(code(page, "import streamlit as st"))
    (entry,) = re.findall(r'^    ("rows": .*,)$', page.read_text(encoding="utf-8"), re.M)
    insert(app / "streamlit_app.py", '"composition":', entry)
    monkeypatch.syspath_prepend(str(app))
    monkeypatch.chdir(tmp_path)
    shown = AppTest.from_file(str(app / "streamlit_app.py"), default_timeout=300).run()
    shown.switch_page("app_pages/rows.py").run()
    assert not shown.exception
    assert not shown.error
    assert [title.value for title in shown.title] == ["Attention rows"]
    shown.query_params["prompt"] = "text"
    shown.query_params["text"] = "There is a zeppelin"
    shown.switch_page("app_pages/rows.py").run()
    assert "zeppelin" in shown.error[0].value


def test_the_page_shows_whole_files():
    """What the test above writes to files is what the page runs in one piece."""
    assert len([block for block in blocks.blocks(PAGE) if "class " in block.code]) == 2
