"""Compositional recall: the key of a fact has two parts, and no part tells the value by itself.

    D a3 b1 B a6 b4 K a3 b4 H a6 b1 ...    ? a6 b1 H ? a3 b1 D ...

A document takes `side` first parts and as many second parts. It states a fact for every pair of them, in random order:
a value and two parts, and no two facts of a document share a value. Then come questions: a mark, two parts and the
value; which fact is asked about is drawn anew for each. A first part stands in `side` facts of different values, and so
does a second part. So who looks for one part alone is right in 1 of `side` questions, and who looks for none in 1 of
`side` squared. Finding the fact takes both matches at once: of one head, or of two whose scores are mixed.

Source: the compositional task of HazyResearch/zoology (`compositional_ar.py`), whose grid of keys this is. There the
value stands behind its key, as an answer does, and every fact is asked about once, at random gaps with random words
between. Here the value stands first: a model of two layers can then gather the key of a fact and that of a question in
the same way, which makes the task quicker to learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcinterp.support.errors import UserError
from dcinterp.train.data.puzzles.puzzle import Documents, Puzzle, distinct

MARK = "?"


@dataclass(frozen=True, kw_only=True)
class CompositionalRecall(Puzzle):
    """The puzzle of this file.

    side: first parts of a document, and second parts; it states side x side facts. parts: words of each kind. values:
    letters that may be a value, at most 26. questions: in a document.
    """

    name: ClassVar[str] = "compositional-recall"

    side: int = 2
    parts: int = 4
    values: int = 8
    questions: int = 8

    def __post_init__(self) -> None:
        if self.side < 2 or self.parts < self.side or self.questions < 1:
            raise UserError(
                f"The puzzle {self.name!r} needs a side of 2 or more, at least as many parts, and 1 question or more; "
                f"data.puzzle.options has {self.side}, {self.parts} and {self.questions}."
            )
        if not self.side**2 <= self.values <= 26:
            raise UserError(
                f"data.puzzle.options has values = {self.values}; {self.side**2} facts of different values need "
                f"{self.side**2} to 26 letters (side is at most 5)."
            )

    def words(self) -> list[str]:
        parts = [f"{kind}{number}" for kind in "ab" for number in range(self.parts)]
        return [*parts, *(chr(ord("A") + number) for number in range(self.values)), MARK]

    def documents(self, random: np.random.Generator, count: int, part: str) -> Documents:
        facts = self.side**2
        held = [distinct(random, (count,), self.parts, self.side) for _ in range(2)]  # [row, place in the grid]
        cells = distinct(random, (count,), facts, facts)  # the order in which the facts stand
        said = distinct(random, (count,), self.values, facts)
        asked, row = random.integers(facts, size=(count, self.questions)), np.arange(count)[:, None]
        cell = np.concatenate([cells, cells[row, asked]], axis=1)
        keys = np.stack([held[0][row, cell // self.side], self.parts + held[1][row, cell % self.side]], axis=2)
        values = 2 * self.parts + said[..., None]
        mark = np.full((count, self.questions, 1), 2 * self.parts + self.values)
        told = np.concatenate([values, keys[:, :facts]], axis=2).reshape(count, -1)
        asks = np.concatenate([mark, keys[:, facts:], values[row, asked]], axis=2).reshape(count, -1)
        words = np.concatenate([told, asks], axis=1)
        answers = np.zeros_like(words, bool)
        answers[:, told.shape[1] + 3 :: 4] = True
        return Documents(words, answers)
