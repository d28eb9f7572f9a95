"""How a page says what became of a hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

FEW = 5


def one_by_one(*ways: Sequence[float], form: str) -> str:
    """What each seed has, in brackets, where a page gives it: of two seeds or more, and fewer than `FEW`."""
    said = " and ".join(", ".join(f"{each:{form}}" for each in way) for way in ways)
    return f" (one by one {said})" if 1 < len(ways[0]) < FEW else ""


def verdict_words(side: int, *, refuted: str, at_an_edge: Sequence[str] = ()) -> str:
    """Supported, refuted or open.

    Args:
        side: where the interval lies: 1 above what was asked, -1 below, 0 around it.
        refuted: what a refutation says.
        at_an_edge: arms that the verdict would go against and whose best value is at an edge of the search; then it is
            open.
    """
    if at_an_edge:
        *first, last = (f"*{arm}*" for arm in at_an_edge)
        named = f"{', '.join(first)} and {last}" if first else last
        return f"**open**, as {named} may do better with a value beyond those searched"
    return ("**open**", "**supported**", f"**refuted**: {refuted}")[side]
