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
extensions = ["myst_parser", "sphinx_copybutton"]
html_theme = "furo"
html_title = "dcinterp"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
# Code, without what a prompt or an output puts around it.
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
exclude_patterns = ["sitetools"]
myst_heading_anchors = 4
# Blocks of the pages that are not Python are shown as they are.
highlight_language = "text"


def _mend(app, docname, source):
    """Of links to files of the repository outside docs/, which a site does not have, keep the text.

    What only looks like a link, C[f,h](t,s) in a formula, stays what it is. Guides end with links to the reference.
    """
    page = HERE / f"{docname}.md"

    def keep(found):
        text, target = found[1], found[2]
        if "," in target:
            return rf"\[{text}\]({target})"
        inside = (page.parent / target.partition("#")[0]).resolve().is_relative_to(HERE)
        return found[0] if "://" in target or inside else text

    fenced, lines = False, (source[0] + pages.references(f"{docname}.md")).split("\n")
    for number, line in enumerate(lines):
        fenced ^= line.startswith("```")
        if not fenced and not line.startswith("    "):
            lines[number] = re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", keep, line)
    source[0] = "\n".join(lines)


def setup(app):
    """Write the generated pages before Sphinx looks for pages."""
    pages.write(HERE / "generated")
    app.connect("source-read", _mend)
