"""What is looked at here, for somebody who has never seen it: a few sentences and one picture of Compose."""

from __future__ import annotations

import streamlit as st

from workbench import jobs
from workbench.theme import theme

SENTENCES = (
    "A language model predicts the next word with **attention heads**: each looks back at earlier words, and copies "
    "something from where it looks. In a usual model every head uses the attention that it computed itself; in "
    "DCFormer a small step, **Compose**, lets heads use each other's attention, more or less of it for every pair of "
    "words. This page takes one question and its answer, finds the head that does most for the answer, and shows from "
    "which heads it borrowed the attention that it used. That `dcformer++` uses this does not say that its "
    "tasks need it: `transformer++`, trained on the same documents without Compose, answers as many of them (the page "
    "*Experiments* says more)."
)
PICTURED = "Compose: the attention that four heads computed is mixed into the attention that they use"
OWN, QUERY, KEY = "#8f8f8f", "#228b4e", "#a03fa8"
"""The colours that the figures give to these parts."""


def introduction() -> None:
    """The sentences beside the picture; open for a visitor who comes for the first time."""
    first = not jobs.came_back()
    with st.expander("What is looked at here", icon=":material/visibility:", expanded=first, key="introduction"):
        # In a narrow window the picture stands below the sentences: beside them nobody could read it.
        beside = st.grid(2, min_column_width=330)
        beside.container().markdown(SENTENCES)
        beside.container().image(compose_picture(theme()), width="stretch", alt=PICTURED)


def compose_picture(look: str) -> str:
    """Four heads' attention on the left, the step that mixes it, and what each head uses on the right, as SVG."""
    ink, paper = ("#e8eaf0", "#23262f") if look == "dark" else ("#1f2430", "#f5f5f5")
    query, key = ("#66bb77", "#cc77cc") if look == "dark" else (QUERY, KEY)
    rows = range(4)
    strips = "".join(_strip(8, 34 + 34 * row, row, ink) + _strip(300, 34 + 34 * row, row + 4, ink) for row in rows)
    own = "".join(_line(row, row, OWN, 2) for row in rows)
    shared = _line(2, 1, key, 3.5) + _line(0, 1, query, 2) + _line(3, 2, key, 1.5)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 205" font-family="sans-serif" font-size="11"
aria-label="{PICTURED}">
<rect x="128" y="22" width="150" height="140" rx="8" fill="{paper}" stroke="{OWN}"/>
<g fill="{ink}"><text x="8" y="14">attention computed</text><text x="203" y="14" text-anchor="middle">Compose</text>
<text x="300" y="14">attention used</text>
<text x="8" y="184">Grey: its own.</text>
<text x="88" y="184" fill="{query}">Green: mixed in by the word that looks,</text>
<text x="88" y="199" fill="{key}">purple: by the word that is looked at.</text></g>
{own}{shared}{strips}</svg>"""


def _strip(x: float, y: float, seed: int, ink: str) -> str:
    """One head's attention to five words; the pictures on the right are the mixture that the lines say."""
    left = ((1, 0, 1, 0, 0), (0, 0, 0, 1, 1), (0, 5, 0, 0, 0), (0, 0, 1, 0, 3))
    right = (left[0], (1, 4, 1, 1, 1), (0, 5, 0, 0, 2), left[3])
    cells = (*left, *right)[seed]
    boxes = "".join(
        f'<rect x="{x + 18 + 15 * i}" y="{y}" width="14" height="14" fill="{ink}" '
        f'fill-opacity="{0.07 + 0.16 * value:.2f}"/>'
        for i, value in enumerate(cells)
    )
    return f'<text x="{x}" y="{y + 11}" fill="{ink}">H{seed % 4}</text>{boxes}'


def _line(start: int, end: int, colour: str, width: float) -> str:
    y0, y1 = (41 + 34 * row for row in (start, end))
    return f'<path d="M108 {y0} C 180 {y0}, 226 {y1}, 296 {y1}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
