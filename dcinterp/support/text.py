"""Numbers and values for people: three digits and a word for the size, and not too long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

SIZES = (1e3, 1e6, 1e9)


def readable(count: float, units: Sequence[str], rest: str = "") -> str:
    """12345678 as "12.3 million", where `units` are the words for thousands, millions and billions.

    Args:
        count: what is counted.
        units: a word for every size.
        rest: the word for what is smaller.
    """
    for size, unit in reversed([*zip(SIZES, units, strict=True)]):
        if float(f"{count:.3g}") >= size:  # as it is written: 999,999 is 1 million
            share = count / size
            return f"{share:,.0f} {unit}" if share >= 999.5 else f"{share:.3g} {unit}"
    return f"{count:.0f} {rest}".strip()


def shown(value: Any, width: int = 60) -> str:
    """A value as Python writes it, cut where it is longer than `width`."""
    text = repr(value)
    return text if len(text) <= width else f"{text[: width - 3]}..."


SEEN = str.maketrans({"\n": "↵", "\r": "␍", "\t": "⇥"})
"""Signs that cannot be seen, and what stands for them."""


def in_sentence(token: str | None) -> str:
    """A token inside a sentence: without the spaces around it, and with line breaks and tabs that can be seen."""
    text = token or ""
    return (text.strip(" ") or "␣" * len(text)).translate(SEEN)


def in_sentence_apart(*tokens: str | None) -> tuple[str, ...]:
    """Tokens of one sentence as `in_sentence` has them, but with their spaces where two would look alike."""
    bare = [in_sentence(token) for token in tokens]
    alike = [
        any(one == other and tokens[at] != tokens[n] for n, other in enumerate(bare)) for at, one in enumerate(bare)
    ]
    return tuple(
        in_sentence((token or "").replace(" ", "␣")) if same else one
        for token, one, same in zip(tokens, bare, alike, strict=True)
    )


def printable(text: str) -> str:
    """A text as a terminal can show it: signs that steer one are written out, lines stay lines."""
    return "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)


def apart(names: Sequence[str]) -> tuple[str, ...]:
    """Names of which each stands once: those that repeat are numbered."""
    made: list[str] = []
    for name in names:
        own, number = name, 1
        while names.count(name) > 1 and (own == name or own in (*names, *made)):
            own, number = f"{name} ({number})", number + 1
        made.append(own)
    return tuple(made)


def counted(number: int, noun: str) -> str:
    """How many of something: "one example", "0 examples", "1,200 examples"."""
    return f"one {noun}" if number == 1 else f"{number:,} {noun}s"


def beside(number: float, point: float, decimals: int = 2, sign: str = "") -> str:
    """A number with as many decimals, at least `decimals`, as tell on which side of `point` it is."""
    texts = [f"{number:{sign}.{places}f}" for places in range(decimals, decimals + 4)]
    return next((text for text in texts if float(text) != point), texts[0])


def interval_name(level: float) -> str:
    """What an interval of a level is called, such as "99.5% interval"."""
    return f"{100 * level:g}% interval"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown: a line for the head, and one for every row."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
