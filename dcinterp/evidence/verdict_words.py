"""How a page says what became of a hypothesis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsFloat

FEW = 5
SUPPORTED, REFUTED, OPEN, NO_VERDICT = WORDS = ("supported", "refuted", "open", "no verdict")


@dataclass(frozen=True)
class Verdict:
    """A hypothesis and what became of it.

    name: such as H1. of: the number that is asked for. above: what it is said to be above, zero or 1. where: in which
    measure. found: the number, with its interval. over: which seeds it is of; empty where there is no number. says: the
    verdict in Markdown, or why there is none. word: the verdict alone, one of `WORDS`. at_an_edge: an arm that it goes
    against, or would if it were not open for that, is at an edge of the search.
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


def interval_text(value: SupportsFloat, low: SupportsFloat, high: SupportsFloat, sign: str = "") -> str:
    """A number with its interval in brackets, or alone where the interval is NaN; `sign` is "+" to show plus signs."""
    middle, *ends = (float(each) for each in (value, low, high))
    # An end that rounds to zero would not tell on which side of it the interval stops.
    first, last = (f"{end:{sign}.3f}" if round(end, 3) or not end else f"{end:{sign}.1g}" for end in ends)
    if all(end and not round(end, 3) for end in ends):  # nor would a mean of 0.000 lie between 1e-5 and 3e-5
        return f"{middle:{sign}.1g} [{first}, {last}]"
    return f"{middle:{sign}.3f}" + ("" if math.isnan(ends[0]) else f" [{first}, {last}]")


def one_by_one(*ways: Sequence[float], form: str) -> str:
    """What each seed has, in brackets, where a page gives it: of two seeds or more, and fewer than `FEW`."""
    said = " and ".join(", ".join(f"{each:{form}}" for each in way) for way in ways)
    return f" (one by one {said})" if 1 < len(ways[0]) < FEW else ""


def verdict_words(side: int, *, refuted: str, at_an_edge: Sequence[str] = (), marks: bool = False) -> tuple[str, str]:
    """The verdict alone, which is supported, refuted or open, and in Markdown with its reason.

    Args:
        side: where the interval lies: 1 above what was asked, -1 below, 0 around it.
        refuted: what a refutation says.
        at_an_edge: arms that the verdict would go against and whose best value is at an edge of the search; then it is
            open.
        marks: it stays, and names them.
    """
    better = ""
    if at_an_edge:
        *first, last = (f"*{arm}*" for arm in at_an_edge)
        better = f"{', '.join(first)}{' and ' if first else ''}{last} may do better with a value beyond those searched"
        if not marks:
            return OPEN, f"{marked(OPEN)}, as {better}"
    word = (OPEN, SUPPORTED, REFUTED)[side]
    return word, marked(word) + (f": {refuted}" if word == REFUTED else "") + (f"; {better}" if better else "")


def marked(word: str) -> str:
    """One of `WORDS` as it stands in Markdown."""
    return f"**{word}**"
