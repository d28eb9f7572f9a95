"""What a puzzle tells: its words, its documents, and which parts of them are measured apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from dcinterp.support.errors import UserError, nearest


@dataclass(frozen=True)
class Documents:
    """Rows of equal length. words [row, position]: places in `Puzzle.words`; answers [row, position]: what is asked."""

    words: np.ndarray
    answers: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Puzzle:
    """A small generated task; its options are the fields of the dataclass.

    name: in the config. PARTS: kinds of documents that are measured apart; training reads the first alone.
    """

    name: ClassVar[str] = ""
    PARTS: ClassVar[tuple[str, ...]] = ("seen",)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The puzzle with these options.

        Raises:
            UserError: it has no such option, or a value is of the wrong kind or size.
        """
        known = {field.name: field.default for field in fields(cls)}
        for option, value in options.items():
            if option not in known:
                raise UserError(f"The puzzle {cls.name!r} has no option {option!r}; {nearest(str(option), known)}")
            if type(value) is not type(known[option]):
                kind = "a whole number" if type(known[option]) is int else f"like {known[option]!r}"
                raise UserError(f"data.puzzle.options has {option} = {value!r}; it must be {kind}.")
        return cls(**options)

    def words(self) -> list[str]:
        """All words, in the order of their ids."""
        raise NotImplementedError

    def documents(self, random: np.random.Generator, count: int, part: str) -> Documents:
        """`count` documents of a part, all of the same length."""
        raise NotImplementedError


def distinct(random: np.random.Generator, shape: tuple[int, ...], among: int, count: int) -> np.ndarray:
    """[*shape, count]: different numbers below `among`, in random order."""
    return random.random((*shape, among)).argsort(-1)[..., :count]
