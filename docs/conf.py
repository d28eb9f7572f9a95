"""The documentation site: `make docs`. The pages beside this file, pages generated from the code, and the notebooks."""

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ["HF_HUB_OFFLINE"] = "1"

from sitetools import pages  # noqa: E402

import dcinterp  # noqa: E402

project = "dcinterp"
version = release = dcinterp.__version__
copyright = "the dcinterp developers"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "dcinterp"
html_copy_source = False
html_show_sphinx = False
exclude_patterns = ["sitetools"]
myst_heading_anchors = 4
# Blocks of the pages that are not Python are shown as they are.
highlight_language = "text"


def _mend(app, docname, source):
    """Of links to files of the repository outside docs/, which a site does not have, keep the text.

    What only looks like a link, C[f,h](t,s) in a formula, stays what it is.
    """
    page = HERE / f"{docname}.md"

    def keep(found):
        text, target = found[1], found[2]
        if "," in target:
            return rf"\[{text}\]({target})"
        inside = (page.parent / target.partition("#")[0]).resolve().is_relative_to(HERE)
        return found[0] if "://" in target or inside else text

    # A pattern of a table of contents may wait for its first page.
    patterns = re.findall(r"^\S*\*\S*$", source[0], flags=re.M) if docname == "index" else []
    for pattern in (p for p in patterns if not list(HERE.glob(f"{p}.md"))):
        source[0] = source[0].replace(f"\n{pattern}\n", "\n")
    fenced, lines = False, source[0].split("\n")
    for number, line in enumerate(lines):
        fenced ^= line.startswith("```")
        if not fenced and not line.startswith("    "):
            lines[number] = re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", keep, line)
    source[0] = "\n".join(lines)


def setup(app):
    """Write the generated pages before Sphinx looks for pages."""
    pages.write(HERE / "generated")
    app.connect("source-read", _mend)
