"""A composition map with the entries of its motifs written into their cells, and the motifs in words."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.composition.composition_map import CompositionMap
from dcinterp.figures.base.grid import grid

RESULT = "CompositionMap"
KIND = "motifs"

LETTERS = {
    "mutual excitation": "E",
    "mutual inhibition": "I",
    "one-to-many": "1→n",
    "many-to-one": "n→1",
    "self-gating": "G",
}


def plot(result: CompositionMap, *, theme: str = "light", share: float = 0.5, many: int = 3) -> go.Figure:
    """Rows are heads that share, columns heads that borrow; no skip; only entries of a motif carry a mark.

    Args:
        result: the map.
        theme: "light" or "dark".
        share: entries of at least this share of the largest are strong.
        many: how many other heads make a one-to-many or many-to-one.
    """
    heads = [str(head) for head in range(len(result.total))]
    found = result.motifs(share=share, many=many)
    named = dict.fromkeys(f"{LETTERS[m.name]} = {m.name}" for m in found)
    title = ", ".join(named) or "No entry belongs to a motif by these rules"
    figure = grid(
        result.added.numpy(),
        x=heads,
        y=heads,
        x_title="to head",
        y_title="from head",
        quantity="weight added",
        theme=theme,
        title=title,
    )
    marks: dict[tuple[int, int], list[str]] = {}
    for motif in found:
        # One side of a one-to-many or many-to-one is a single head.
        length = max(len(motif.sources), len(motif.targets))
        pairs = zip(motif.sources * length, motif.targets * length, range(length), strict=False)
        for source, target, _ in pairs:
            marks.setdefault((source, target), []).append(LETTERS[motif.name])
    written = [["" for _ in heads] for _ in heads]
    for (row, column), letters in marks.items():
        written[row][column] = " ".join(letters)
    figure.data[0].update(text=written, texttemplate="%{text}")
    return figure
