"""The code blocks of a page: run in order, with the figures that the page shows after them.

A line `![text](images/NAME.png)` after a block shows the Plotly figure that the block left in the name `figure`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sitetools.notebooks import WIDTH, small

DOCS = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n!\[[^\]]*\]\((?P<image>images/[\w-]+\.png)\))?", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A block, and the image that it draws, relative to the page; None for most."""

    code: str
    image: str | None
    line: int


def blocks(page: Path) -> list[Block]:
    """The Python blocks of a page, without those marked `notest`, which need what a test does not have."""
    text = page.read_text(encoding="utf-8")
    return [Block(m["code"], m["image"], text[: m.start()].count("\n") + 1) for m in BLOCK.finditer(text)]


def run(page: Path) -> Iterator[tuple[Block, dict[str, Any]]]:
    """Run a page's blocks in one namespace; yields each with the namespace after it."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        # Empty lines in front, so that a traceback names the line of the page.
        exec(compile("\n" * block.line + block.code, str(page), "exec", dont_inherit=True), namespace)
        yield block, namespace


def draw(page: Path) -> None:
    """Run a page and write its images beside it."""
    from dcinterp.figures.base.export import image

    for block, namespace in run(page):
        if block.image is not None:
            (page.parent / block.image).write_bytes(small(image(namespace["figure"], "png", width=WIDTH)))
            sys.stdout.write(f"{block.image}\n")


if __name__ == "__main__":
    for each in sorted(DOCS.glob("*.md")):
        if any(block.image for block in blocks(each)):
            draw(each)
