"""Recombination: ways to find a fact and ways to say it are seen apart, and asked for together.

    red-cup-D blue-hat-A gold-key-H green-jar-B  +2 red F  +1 hat B  +2 key B ...

Every document has four facts. A fact is one word: a colour, a thing and a letter; no two facts share any of them. A
question names a relation (+2) and a key, which is a colour or a thing; the answer is the letter of the fact with this
key, moved on by so many places of the alphabet, which goes round. Finding the fact is the work of attention's queries
and keys. Saying it is that of values and output, as long as no MLP can do it. By which of the two ways a fact is found
is the pattern of a question.

Some relations (`held_out` of them, from `first` on) are asked about with one pattern alone in training, by turns. The
part `held-out` asks about the pairs that are left: both halves are known, and only their pairing is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcinterp.support.errors import UserError
from dcinterp.train.data.puzzles.puzzle import Documents, Puzzle, distinct

COLOURS = ("red", "blue", "gold", "green")
THINGS = ("cup", "hat", "key", "jar")
FACTS = len(COLOURS)


@dataclass(frozen=True, kw_only=True)
class Recombination(Puzzle):
    """The puzzle of this file.

    letters: size of the alphabet, 4 to 26. relations: how many ways to say a letter, at most as many as letters.
    held_out: pairs of a pattern and a relation that training leaves out. questions: in a document. first: the relation
    of the first of these pairs, so that a search can leave out others than those that are reported.
    """

    name: ClassVar[str] = "recombination"
    PARTS: ClassVar[tuple[str, ...]] = ("seen", "held-out")

    letters: int = 8
    relations: int = 8
    held_out: int = 4
    questions: int = 8
    first: int = 0

    def __post_init__(self) -> None:
        if not FACTS <= self.letters <= 26 or not 1 <= self.relations <= self.letters or self.questions < 1:
            raise UserError(
                f"The puzzle {self.name!r} needs 4 to 26 letters, 1 to as many relations and 1 question or more; "
                f"data.puzzle.options has {self.letters}, {self.relations} and {self.questions}."
            )
        if not 1 <= self.held_out < self.relations:
            raise UserError(
                f"data.puzzle.options has held_out = {self.held_out}; with {self.relations} relations it must be 1 to "
                f"{self.relations - 1}, so that one relation at least is seen with both patterns."
            )
        if not 0 <= self.first <= self.relations - self.held_out:
            raise UserError(
                f"data.puzzle.options has first = {self.first}; with {self.held_out} of {self.relations} relations "
                f"held out it must be 0 to {self.relations - self.held_out}."
            )

    def alphabet(self) -> list[str]:
        return [chr(ord("A") + number) for number in range(self.letters)]

    def fact_words(self) -> list[str]:
        """All facts that there can be; they come first among the words."""
        return [f"{colour}-{thing}-{letter}" for colour in COLOURS for thing in THINGS for letter in self.alphabet()]

    def words(self) -> list[str]:
        return [
            *self.fact_words(),
            *COLOURS,
            *THINGS,
            *self.alphabet(),
            *(f"+{number}" for number in range(self.relations)),
        ]

    def pairs(self, part: str) -> list[tuple[int, int]]:
        """(pattern, relation) of a part: in training those held out are not asked for with pattern relation % 2."""
        held_out = [(relation % 2, relation) for relation in range(self.first, self.first + self.held_out)]
        everything = [(pattern, relation) for pattern in range(2) for relation in range(self.relations)]
        return held_out if part == "held-out" else [pair for pair in everything if pair not in held_out]

    def draw_facts(self, random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Facts of `count` documents, no two alike in anything.

        Returns:
            held: colour and thing, [row, 2, fact]; said: letter, [row, fact]; and their words, [row, fact].
        """
        held = np.stack([distinct(random, (count,), FACTS, FACTS) for _ in range(2)], axis=1)
        said = distinct(random, (count,), self.letters, FACTS)
        return held, said, (held[:, 0] * len(THINGS) + held[:, 1]) * self.letters + said

    def documents(self, random: np.random.Generator, count: int, part: str) -> Documents:
        keys = len(COLOURS) * len(THINGS) * self.letters
        letters, relations = keys + len(COLOURS) + len(THINGS), keys + len(COLOURS) + len(THINGS) + self.letters
        pairs = np.array(self.pairs(part))[random.integers(len(self.pairs(part)), size=(count, self.questions))]
        held, said, facts = self.draw_facts(random, count)
        asked, row = random.integers(FACTS, size=(count, self.questions)), np.arange(count)[:, None]
        pattern, relation = pairs[..., 0], pairs[..., 1]
        words = np.empty((count, FACTS + 3 * self.questions), np.int64)
        words[:, :FACTS] = facts
        words[:, FACTS::3] = relations + relation
        words[:, FACTS + 1 :: 3] = keys + pattern * len(COLOURS) + held[row, pattern, asked]
        words[:, FACTS + 2 :: 3] = letters + (said[row, asked] + relation) % self.letters
        answers = np.zeros_like(words, bool)
        answers[:, FACTS + 2 :: 3] = True
        return Documents(words, answers)
