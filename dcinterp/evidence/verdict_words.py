"""How a page says what became of a hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
"""Of intervals, where nothing else is asked for."""
FAMILY_ERROR = 0.05
"""What all tests of a family may err together."""
SUPPORTED, REFUTED, OPEN, NO_VERDICT = WORDS = ("supported", "refuted", "open", "no verdict")


@dataclass(frozen=True)
class Verdict:
    """A hypothesis and what became of it.

    name: such as H1. of: the number that is asked for. above: what it is said to be above, zero or 1. where: in which
    measure. found: the number, with its 95 % interval, and with that of another level where such a one decides. over:
    which seeds it is of; empty where there is no number. says: the verdict in Markdown, or why there is none. word: the
    verdict alone, one of `WORDS`. at_an_edge: an arm that it goes against, or would if it were not open for that, is at
    an edge of the search.
    """

    name: str
    of: str
    above: str
    where: str
    found: str
    over: str
    says: str
    word: str
    at_an_edge: bool = False

    @property
    def line(self) -> str:
        """All of it, in Markdown."""
        asks = f"**{self.name}** ({self.of} is above {self.above}, {self.where})"
        return f"{asks}: {self.found}{f' over {self.over}; ' if self.over else '. '}{self.says}."


def verdict_words(
    side: int, *, refuted: str, at_an_edge: Sequence[str] = (), marks: bool = False, level: float = LEVEL
) -> tuple[str, str]:
    """The verdict alone, which is supported, refuted or open, and in Markdown with its reason.

    Args:
        side: where the interval lies: 1 above what was asked, -1 below, 0 around it.
        refuted: what a refutation says.
        at_an_edge: arms that the verdict would go against and whose best value is at an edge of the search; then it is
            open.
        marks: it stays, and names them.
        level: of the interval.
    """
    better = ""
    if at_an_edge:
        *first, last = (f"*{arm}*" for arm in at_an_edge)
        better = f"{', '.join(first)}{' and ' if first else ''}{last} may do better with a value beyond those searched"
        if not marks:
            return OPEN, f"{marked(OPEN)}{at_level(level)}, as {better}"
    word = (OPEN, SUPPORTED, REFUTED)[side]
    said = marked(word) + at_level(level) + (f": {refuted}" if word == REFUTED else "")
    return word, said + (f"; {better}" if better else "")


def error_of(tests: int) -> float:
    """What each of so many tests may err, so that together they err `FAMILY_ERROR` at the most (Bonferroni)."""
    return FAMILY_ERROR / tests


def at_level(level: float) -> str:
    """What a verdict by intervals of a level says behind its word; nothing where it is the usual one."""
    return "" if level == LEVEL else f" at {100 * level:g} %"


def marked(word: str) -> str:
    """One of `WORDS` as it stands in Markdown."""
    return f"**{word}**"
