"""The generated pages cover the code, and the site builds without a warning and is complete."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer
from sitetools import pages, tables

import dcinterp
from dcinterp.cli import verbs
from dcinterp.results.registry import ANALYSES

DOCS = Path(__file__).parents[2] / "docs"
CHAINS = {"case_study", "attention_patterns", "method_benchmark"}
"""Their block lists steps, stages or methods, each of which has its equation elsewhere."""


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return dict(pages.generated())


def test_every_public_name_has_its_place(generated):
    for name in dcinterp.__all__:
        if not name.startswith("__"):
            pages_of = [page for page, text in generated.items() if f"## dcinterp.{name}\n" in text]
            assert len(pages_of) == 1, name
            assert f"`{name}`" in generated["api.md"]
            assert f"({pages_of[0]})" in generated["api.md"]


def test_every_verb_has_its_place(generated):
    for name in typer.main.get_command(verbs).list_commands(None):
        assert f"## dcinterp {name}\n" in generated["command-line.md"]


def test_every_analysis_has_a_page_that_says_what_it_does_not_show(generated):
    for name in ANALYSES:
        page = generated[f"analysis-{name.replace('_', '-')}.md"]
        says = any(words in page for words in ("not show", "not what", "is no whole", "is not a whole"))
        assert says, f"the docstring of the module of {name} says nowhere what it does not show"
        assert "**Raises**" in page or "**Arguments**" in page, name


def test_docstrings_become_markdown():
    text = pages.prose(
        """Does it.

        Args:
            x: a number,
                or two.
            y, z: more.

        Raises:
            UserError: it cannot.
        """
    )
    assert text.split("\n")[2:] == [
        "**Arguments**",
        "",
        "- `x`: a number,",
        "  or two.",
        "- `y, z`: more.",
        "",
        "**Raises**",
        "",
        "- `UserError`: it cannot.",
    ]


def test_hook_tables_name_every_kind_of_hook():
    text = tables.composition_table() + tables.standard_table()
    for hook in dcinterp.list_hooks(dcinterp.load("dcformer++"), layer=0):
        assert hook.name.rsplit(".", 1)[-1] in text


def test_every_analysis_has_a_guide_with_an_equation(generated):
    assert set(pages.guides()) == set(ANALYSES), "the table of docs/analyses.md lists every analysis"
    for name, guide in pages.guides().items():
        page = generated[f"analysis-{name.replace('_', '-')}.md"]
        assert f"]({guide.link})" in page
        # Before the arguments: what is computed, as an equation, and lines of use.
        head = page.partition(f"## {name}\n")[0]
        block = r"^ {4}\S" if name in CHAINS else r"^ {4}.*="
        assert re.search(block, head, re.M), f"{name}: no equation"
        assert f"dcinterp.{name}(" in head or "```python" in head, f"{name}: no lines of use"


class Page(HTMLParser):
    """The anchors of a built page, its links, and what a browser fetches to show it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.words: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.ids |= {named[key] for key in ("id", "name") if key in named}
        if tag == "a" and "href" in named:
            self.links.add(named["href"])
        if tag == "img":
            self.words.append(named.get("alt", ""))
        if "src" in named:
            self.fetched.add(named["src"])
        if tag == "link" and named.get("rel") not in {"next", "prev", "index", "search", "genindex"}:
            self.fetched.add(named["href"])


def faults(site: Path) -> list[str]:
    """Dead links, pictures without words, and whatever a browser would fetch from the network."""
    built = {path.resolve(): Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    found = []
    for path, page in built.items():
        found += [f"{path.name}: a picture without words" for words in page.words if len(words) < 10]
        for target in page.fetched | page.links:
            parts = urlsplit(target)
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme or parts.netloc:
                if target in page.fetched and parts.scheme != "data":
                    found.append(f"{path.name}: fetches {target}")
            elif not there.is_file():
                found.append(f"{path.name}: no {target}")
            elif there in built and parts.fragment and unquote(parts.fragment) not in built[there].ids:
                found.append(f"{path.name}: no such place, {target}")
    outside = re.compile(r"(url\([\"']?|@import\s+[\"'])(https?:)?//")
    styles = [style for style in site.rglob("*.css") if outside.search(style.read_text(encoding="utf-8"))]
    return found + [f"{style.name} fetches something" for style in styles]


def test_faults_of_a_site_are_found(tmp_path):
    (tmp_path / "other.html").write_text('<h1 id="here">Other</h1>')
    good = '<a href="other.html#here">x</a> <a href="https://example.org">x</a> <img src="other.html" alt="Some words">'
    (tmp_path / "page.html").write_text(good)
    assert faults(tmp_path) == []
    (tmp_path / "site.css").write_text("@import 'https://example.org/x.css';")
    bad = '<a href="other.html#there"></a> <a href="gone.html"></a> <img src="//example.org/x.png">'
    (tmp_path / "page.html").write_text(bad)
    assert sorted(faults(tmp_path)) == [
        "page.html: a picture without words",
        "page.html: fetches //example.org/x.png",
        "page.html: no gone.html",
        "page.html: no such place, other.html#there",
        "site.css fetches something",
    ]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_is_whole(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path.stem for path in DOCS.rglob("*.md")} <= {path.stem for path in tmp_path.rglob("*.html")}
    assert faults(tmp_path) == []
