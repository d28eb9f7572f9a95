"""The Python of the README and the docs runs as it stands (blocks marked `notest` need what a test does not have)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sitetools import blocks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in DOCS.rglob("*.md") if not page.is_relative_to(DOCS / "generated")),
]
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture
def registries(monkeypatch):
    """What a page registers as an example (an analysis, a result) is removed again after the page."""
    from dcinterp.results import registry
    from dcinterp.results.result import Result

    assert registry.ANALYSES
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(Result, "kinds", dict(Result.kinds))


@EACH
@pytest.mark.usefixtures("registries")
def test_python_blocks_run(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    # The blocks of a page build on each other.
    for block, namespace in blocks.run(page):
        if block.image is not None:
            assert "figure" in namespace, f"{page.name}, line {block.line}: nothing to draw as {block.image}"


@EACH
def test_links_inside_the_repository_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        # Generated pages exist once the site is built, and test_site looks after the links to them.
        if "://" not in target and "generated/" not in target:
            assert (page.parent / target).exists(), target
