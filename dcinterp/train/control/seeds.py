"""Seeds as a person writes them: "10-19,25"."""

from __future__ import annotations

from collections.abc import Sequence

from dcinterp.support.errors import UserError


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds of a text such as "10-19" or "3,5"; none of an empty one.

    Raises:
        UserError: it is neither.
    """
    if not text.strip():
        return ()
    found: list[int] = []
    for part in [part.strip() for part in text.split(",") if part.strip()] or [text]:
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not first.isdigit() or not last.isdigit() or not 0 <= int(last) - int(first) <= 9999:
            raise UserError(f"{text!r} names no seeds; write them as 10-19 or as 3,5.")
        found += range(int(first), int(last) + 1)
    return tuple(dict.fromkeys(found))


def whole_seeds(count: int, planned: int) -> str:
    """How many seeds can be compared, in words."""
    return f"{count} of {planned} seeds {'has' if count == 1 else 'have'} a run of every arm"


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds as `parse_seeds` reads them: those that follow each other as a range, such as "10-19,25"."""
    runs = list[list[int]]()
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
