"""Which heads share most at a pair of tokens: what the page of the composition shows first."""

from __future__ import annotations

from typing import Any


def strongest_sharing(breakdown: Any) -> tuple[int, int]:
    """(from, to) of the two heads between which most attention is shared, by the weights of both tokens together."""
    moved = (breakdown.shared("key") + breakdown.shared("query")).abs().fill_diagonal_(0)
    head_from, head_to = divmod(int(moved.argmax()), len(moved))
    return head_from, head_to


def sharing_side(breakdown: Any, head_from: int, head_to: int) -> str:
    """ "key" or "query": the token by whose dynamic weights one head shares most with another."""
    return max(("key", "query"), key=lambda side: abs(float(breakdown.shared(side)[head_from, head_to])))
