"""Pairing: two words before a key say how its fact is found and how its letter is said.

    red-cup-D blue-hat-A gold-key-H green-jar-B  colour rule2 red-hat F  thing rule0 gold-cup G ...

Facts are those of `recombination`: four words, each a colour, a thing and a letter, and no two share any of them. A
question has three words. The first says by which half of the key the fact is found (the pattern of the question). The
second is a relation, a fixed permutation of the letters. The third is the key: the colour of one fact and the thing of
another. The answer is what the relation makes of the letter of the fact that is meant. No document asks a question
twice.

A shift of the alphabet, as in `recombination`, is a sum of two numbers but where the alphabet goes round; what a
permutation drawn at random makes of a letter is not.

The key stands last. Where the answer is read, a first layer that sees three words can fetch the half and the relation
but no fact (`attention_windows: [3, null]`), so that fact and relation first meet there in the second layer. What each
relation makes of a letter may be prepared at the fact.

Some relations are asked about with one half alone in training, as in `recombination`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcinterp.support.errors import UserError
from dcinterp.train.data.puzzles.puzzle import Documents, distinct
from dcinterp.train.data.puzzles.recombination import COLOURS, FACTS, THINGS, Recombination

HALVES = ("colour", "thing")


@dataclass(frozen=True, kw_only=True)
class Pairing(Recombination):
    """The puzzle of this file. Options are those of `recombination`; a pattern is the half by which a fact is found."""

    name: ClassVar[str] = "pairing"

    relations: int = 4
    held_out: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        fewest = min(len(self.pairs(part)) for part in self.PARTS)
        if self.questions > FACTS * fewest:
            raise UserError(
                f"data.puzzle.options has questions = {self.questions}; {FACTS} facts and {fewest} pairs of a part are "
                f"asked about in {FACTS * fewest} ways at most, and no document asks twice."
            )

    def words(self) -> list[str]:
        keys = [f"{colour}-{thing}" for colour in COLOURS for thing in THINGS]
        rules = [f"rule{number}" for number in range(self.relations)]
        return [*self.fact_words(), *keys, *self.alphabet(), *HALVES, *rules]

    def rules(self) -> np.ndarray:
        """[relation, letter]: what each relation makes of a letter, the same in all runs."""
        return distinct(np.random.default_rng(0), (self.relations,), self.letters, self.letters)

    def documents(self, random: np.random.Generator, count: int, part: str) -> Documents:
        things = len(THINGS)
        keys = len(COLOURS) * things * self.letters
        letters = keys + len(COLOURS) * things
        halves = letters + self.letters
        pairs = np.array(self.pairs(part))
        asked, pair = np.divmod(distinct(random, (count,), FACTS * len(pairs), self.questions), len(pairs))
        half, relation = pairs[pair].transpose(2, 0, 1)
        held, said, facts = self.draw_facts(random, count)
        other = (asked + random.integers(1, FACTS, size=asked.shape)) % FACTS
        by_colour, by_thing = np.where(half, other, asked), np.where(half, asked, other)
        row = np.arange(count)[:, None]
        words = np.empty((count, FACTS + 4 * self.questions), np.int64)
        words[:, :FACTS] = facts
        words[:, FACTS::4] = halves + half
        words[:, FACTS + 1 :: 4] = halves + len(HALVES) + relation
        words[:, FACTS + 2 :: 4] = keys + held[row, 0, by_colour] * things + held[row, 1, by_thing]
        words[:, FACTS + 3 :: 4] = letters + self.rules()[relation, said[row, asked]]
        answers = np.zeros_like(words, bool)
        answers[:, FACTS + 3 :: 4] = True
        return Documents(words, answers)
