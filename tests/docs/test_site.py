"""What the site generates covers the code, and the site builds without a warning (where Sphinx is installed)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from sitetools import pages, tables

import dcinterp
from dcinterp.analysis.registry import ANALYSES
from dcinterp.cli import verbs

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return dict(pages.generated())


def test_every_public_name_has_its_place(generated):
    for name in dcinterp.__all__:
        if not name.startswith("__"):
            assert f"### dcinterp.{name}\n" in generated["api.md"]


def test_every_verb_has_its_place(generated):
    for name in typer.main.get_command(verbs).list_commands(None):
        assert f"## dcinterp {name}\n" in generated["command-line.md"]


def test_every_analysis_has_a_page_that_says_what_it_does_not_show(generated):
    for name in ANALYSES:
        page = generated[f"analysis-{name.replace('_', '-')}.md"]
        assert any(words in page for words in ("not show", "not what", "is no whole")), name
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


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("sphinx", reason="the site needs `pip install .[docs]`")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    # Nothing is fetched when a page is read: scripts and styles are beside it.
    assert 'src="http' not in index
    assert (tmp_path / "generated" / "analysis-index.html").is_file()
