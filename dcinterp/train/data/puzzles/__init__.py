"""Puzzles: small generated tasks with words of their own, each a question about what heads can do. A file a puzzle.

A puzzle is not one of the 74 tasks: it is as small as its question allows, so that a run takes a minute and many seeds
can be trained. A run reads one with `source: puzzle` and `data.puzzle: {name: ..., options: {...}}`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from dcinterp.support.errors import UserError, nearest
from dcinterp.support.extensions import OF_ANOTHER, Classes
from dcinterp.train.config.recipe import PuzzleSection
from dcinterp.train.data.puzzles.puzzle import Puzzle


def _scan() -> dict[str, type[Puzzle]]:
    modules = [vars(import_module(f"{__name__}.{info.name}")) for info in iter_modules(__path__)]
    classes = [each for names in modules for each in names.values() if isinstance(each, type) and each is not Puzzle]
    found: dict[str, type[Puzzle]] = {}
    for each in dict.fromkeys(each for each in classes if issubclass(each, Puzzle)):
        if each.name in found:
            both = f"{found[each.name].__name__} and {each.__name__}"
            raise UserError(f"{both} are both the puzzle {each.name!r}; give one another name.")
        found[each.name] = each
    return found


PUZZLES: Classes[Puzzle] = Classes(_scan(), Puzzle, "puzzles")
"""Every puzzle by the name that `data.puzzle.name` gives; a new one is a file in this folder, or of another package."""


def open_puzzle(section: PuzzleSection) -> Puzzle:
    """The puzzle that a config names, with its options.

    Raises:
        UserError: there is no such puzzle or option, or the options contradict each other.
    """
    if section.name not in PUZZLES:
        raise UserError(f"data.puzzle.name is {section.name!r}; {nearest(section.name, PUZZLES)} {OF_ANOTHER}")
    return PUZZLES[section.name].from_options(section.options)
