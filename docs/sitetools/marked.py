"""Parts of pages that the code writes: what stands between `<!-- NAME: ... -->` and `<!-- end -->`."""

from __future__ import annotations

import os
import re
from pathlib import Path


def require_part(page: Path, name: str, text: str) -> None:
    """Assert that a part of a page is this text; with UPDATE_DOCS in the environment, write it there first.

    Raises:
        AssertionError: the page has no such part, or another text in it.
    """
    pattern = re.compile(rf"(<!-- {re.escape(name)}: [^\n]*-->\n)(.*?)(<!-- end -->)", re.S)
    whole = page.read_text(encoding="utf-8")
    assert pattern.search(whole), f"{page.name} has no part <!-- {name}: ... -->"
    expected = pattern.sub(lambda m: f"{m[1]}{text}\n{m[3]}", whole)
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(expected, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == expected, f"{page.name}: run the test of {name!r} with UPDATE_DOCS=1"
