"""Find the block: which block of letters holds all letters of a question?

    . h c k a f . b l d i e . g c b j a ...    # i b d    # a c f ...

A document has blocks of `size` different letters behind a dot, and then questions: a mark, `asked` different letters
in any order, and the answer, which is the first or the last letter of the one block that holds them all, or all of that
block. Other blocks may hold one of them, so a query that looks for one letter cannot tell the block. The answer may
itself be asked about: who repeats one of the letters of the question is right in 1 of `size` (of the variants that say
one letter).

Source: the motivating task of multi-token attention (Golovneva et al. 2025, section 4.1), with N = `size` = 5 and
L = `asked` = 2. The paper has 26 letters, one question a document, and 52 blocks by the authors' code; the defaults
here have fewer letters and blocks, and several questions. As there, no other block holds all letters of a question;
documents are drawn until that is so.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import ClassVar

import numpy as np

from dcinterp.support.errors import UserError
from dcinterp.train.data.puzzles.puzzle import Documents, Puzzle, distinct

DOT, MARK = ".", "#"
SAID = {"first": slice(1), "last": slice(-1, None), "all": slice(None)}
"""The letters of the block that answer a question, by `says`."""
RAREST = 0.01
"""The share of drawn documents with one answer to every question, below which drawing would take too long."""


@dataclass(frozen=True, kw_only=True)
class FindBlock(Puzzle):
    """The puzzle of this file.

    letters: size of the alphabet, at most 26. blocks: in a document. size: letters of a block. asked: letters of a
    question. questions: in a document. says: the "first" or "last" letter of the block, or "all" of them in order.
    """

    name: ClassVar[str] = "find-block"

    letters: int = 16
    blocks: int = 6
    size: int = 5
    asked: int = 2
    questions: int = 4
    says: str = "last"

    def __post_init__(self) -> None:
        if not 1 <= self.asked < self.size <= self.letters <= 26 or self.blocks < 2 or self.questions < 1:
            raise UserError(
                f"The puzzle {self.name!r} needs asked < size <= letters <= 26, 2 blocks or more and 1 question or "
                f"more; data.puzzle.options has {self.asked}, {self.size}, {self.letters}, {self.blocks} and "
                f"{self.questions}."
            )
        if self.says not in SAID:
            raise UserError(f"data.puzzle.options has says = {self.says!r}; it must be 'first', 'last' or 'all'.")
        if self._share_kept() < RAREST:
            raise UserError(
                f"With {self.letters} letters hardly a document has one block alone for each of {self.questions} "
                f"questions of {self.asked} among {self.blocks} blocks of {self.size}; give more letters, or fewer "
                "blocks or questions."
            )

    def words(self) -> list[str]:
        return [*(chr(ord("a") + number) for number in range(self.letters)), DOT, MARK]

    def documents(self, random: np.random.Generator, count: int, part: str) -> Documents:
        blocks, target, letters = drawn = self._draw(random, count)
        while (again := np.flatnonzero(~self._has_one_answer(*drawn))).size:
            for whole, new in zip(drawn, self._draw(random, again.size), strict=True):
                whole[again] = new
        said = blocks[np.arange(count)[:, None], target][..., SAID[self.says]]
        dots = np.full((count, self.blocks, 1), self.letters)
        marks = np.full((count, self.questions, 1), self.letters + 1)
        told = np.concatenate([dots, blocks], axis=2).reshape(count, -1)
        questions = np.concatenate([marks, letters, said], axis=2)
        scored = np.zeros_like(questions, bool)
        scored[..., 1 + self.asked :] = True
        unscored = np.zeros_like(told, bool)
        return Documents(
            np.concatenate([told, questions.reshape(count, -1)], axis=1),
            np.concatenate([unscored, scored.reshape(count, -1)], axis=1),
        )

    def _draw(self, random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """blocks [row, block, place]; of each question its block [row, question] and letters [row, question, asked]."""
        blocks = distinct(random, (count, self.blocks), self.letters, self.size)
        target = random.integers(self.blocks, size=(count, self.questions))
        chosen = distinct(random, (count, self.questions), self.size, self.asked)
        return blocks, target, np.take_along_axis(blocks[np.arange(count)[:, None], target], chosen, axis=2)

    def _has_one_answer(self, blocks: np.ndarray, target: np.ndarray, letters: np.ndarray) -> np.ndarray:
        """[row]: of every question, one block alone holds all letters."""
        holds = (letters[:, :, None, :, None] == blocks[:, None, :, None, :]).any(-1).all(-1)  # [row, question, block]
        return (holds.sum(-1) == 1).all(-1)

    def _share_kept(self) -> float:
        """About the share of drawn documents in which every question has one answer."""
        other = comb(self.letters - self.asked, self.size - self.asked) / comb(self.letters, self.size)
        return (1 - other) ** ((self.blocks - 1) * self.questions)
