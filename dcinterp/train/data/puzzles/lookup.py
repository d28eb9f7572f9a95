"""Lookup: many ways to find a fact times many ways to say it, asked of items that are known by heart.

    item7 item201 item33 item250  a3=1 rule2 F  a0=0 rule5 B ...

There is a fixed list of items, the same in all runs: each has a value of every attribute, drawn at random, and a
letter, by turns, so that each letter has as many items. A document names some of them, with letters of their own. A
question has two words. The first is a value of an attribute that one of these items alone has; which attribute it is,
is the pattern of the question. The second is a relation, a fixed permutation of the letters. The answer is what the
relation makes of that item's letter. No document asks a question twice.

Where the answer is read, a first layer that sees two words (`attention_windows: [2, null]`) can fetch the other word of
the question and no item, so that without an MLP one layer must find by any attribute and say by any relation. Plain
attention can do it with a head for each relation, or for each letter of the answer, that finds by every attribute, in
as many dimensions as that takes. Composed heads can share the finding and the saying. Neither is proven to be the only
way.

Some pairs of an attribute and a relation (`held_out` of them) are not asked about in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from dcinterp.support.errors import UserError
from dcinterp.train.data.puzzles.puzzle import Documents, Puzzle, distinct


@dataclass(frozen=True, kw_only=True)
class Lookup(Puzzle):
    """The puzzle of this file.

    attributes: how many an item has. values: of an attribute. relations: permutations of the letters. letters: size of
    the alphabet, 4 to 26. items: in the list. facts: items in a document. held_out: pairs of an attribute and a
    relation that training leaves out, one for each of the first attributes. questions: in a document. first: the
    relation of the first of these pairs, so that a search can leave out others than those that are reported.
    """

    name: ClassVar[str] = "lookup"
    PARTS: ClassVar[tuple[str, ...]] = ("seen", "held-out")

    attributes: int = 8
    values: int = 8
    relations: int = 8
    letters: int = 8
    items: int = 256
    facts: int = 4
    held_out: int = 4
    questions: int = 8
    first: int = 0

    def __post_init__(self) -> None:
        if not 4 <= self.letters <= 26 or not 2 <= self.facts <= self.letters:
            raise UserError(
                f"The puzzle {self.name!r} needs 4 to 26 letters and 2 facts to as many as letters; "
                f"data.puzzle.options has {self.letters} and {self.facts}."
            )
        if self.items < self.letters or self.items % self.letters:
            raise UserError(
                f"data.puzzle.options has items = {self.items}; it must be a multiple of letters = {self.letters}, so "
                "that each letter has as many items."
            )
        if not 1 <= self.held_out <= self.attributes or self.relations < 2 or self.values < 2 or self.questions < 1:
            raise UserError(
                f"The puzzle {self.name!r} needs 2 relations and values or more, 1 question or more, and held_out from "
                f"1 to the number of attributes; data.puzzle.options has {self.relations}, {self.values}, "
                f"{self.questions} and {self.held_out} of {self.attributes}."
            )
        if self.questions > (most := self.facts * self.held_out):
            raise UserError(
                f"data.puzzle.options has questions = {self.questions}; {self.facts} facts and held_out = "
                f"{self.held_out} pairs of an attribute and a relation are asked about in {most} ways at most, and no "
                "document asks twice."
            )

    def words(self) -> list[str]:
        named = [f"a{a}={value}" for a in range(self.attributes) for value in range(self.values)]
        rules = [f"rule{number}" for number in range(self.relations)]
        return [*(f"item{number}" for number in range(self.items)), *named, *self.alphabet(), *rules]

    def alphabet(self) -> list[str]:
        return [chr(ord("A") + number) for number in range(self.letters)]

    @cached_property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """The values of every item, [item, attribute], and its letter, [item], by turns; the same in all runs."""
        random = np.random.default_rng(0)
        return random.integers(self.values, size=(self.items, self.attributes)), np.arange(self.items) % self.letters

    def rules(self) -> np.ndarray:
        """[relation, letter]: what each relation makes of a letter, the same in all runs."""
        return distinct(np.random.default_rng(1), (self.relations,), self.letters, self.letters)

    def pairs(self, part: str) -> np.ndarray:
        """[attribute, relation]: whether a part asks for the pair."""
        left_out = np.zeros((self.attributes, self.relations), bool)
        number = np.arange(self.held_out)
        left_out[number, (self.first + number) % self.relations] = True
        return left_out if part == "held-out" else ~left_out

    def alone(self, facts: np.ndarray) -> np.ndarray:
        """[row, fact, attribute]: whether no other fact of a row has the value that this one has."""
        values = self.table[0][facts]
        return (values[:, :, None] == values[:, None]).sum(2) == 1

    def draw_facts(self, random: np.random.Generator, count: int, part: str) -> tuple[np.ndarray, np.ndarray]:
        """Items of `count` documents, no two of one letter, [row, fact]; and [row, fact, attribute, relation]: what can
        be asked of them. Documents in which too little can be asked are drawn again.

        Raises:
            UserError: too little can be asked of most documents.
        """
        facts = np.empty((count, self.facts), np.int64)
        open_to_ask = np.zeros((count, self.facts, self.attributes, self.relations), bool)
        for _ in range(100):
            short = np.flatnonzero(open_to_ask.reshape(count, -1).sum(-1) < self.questions)
            if not len(short):
                return facts, open_to_ask
            said = distinct(random, (len(short),), self.letters, self.facts)
            facts[short] = random.integers(self.items // self.letters, size=said.shape) * self.letters + said
            open_to_ask[short] = self.alone(facts[short])[..., None] & self.pairs(part)
        raise UserError(
            f"data.puzzle.options has questions = {self.questions}; too few documents of the part {part!r} can be "
            "asked so much. Give fewer questions, more values, or a larger held_out."
        )

    def documents(self, random: np.random.Generator, count: int, part: str) -> Documents:
        held, letter = self.table
        facts, open_to_ask = self.draw_facts(random, count, part)
        values = held[facts]
        order = np.where(open_to_ask, random.random(open_to_ask.shape), 2.0).reshape(count, -1).argsort(-1)
        asked, attribute, relation = np.unravel_index(order[:, : self.questions], open_to_ask.shape[1:])
        row = np.arange(count)[:, None]
        named = self.items + attribute * self.values + values[row, asked, attribute]
        letters = self.items + self.attributes * self.values
        words = np.empty((count, self.facts + 3 * self.questions), np.int64)
        words[:, : self.facts] = facts
        words[:, self.facts :: 3] = named
        words[:, self.facts + 1 :: 3] = letters + self.letters + relation
        words[:, self.facts + 2 :: 3] = letters + self.rules()[relation, letter[facts[row, asked]]]
        answers = np.zeros_like(words, bool)
        answers[:, self.facts + 2 :: 3] = True
        return Documents(words, answers)
