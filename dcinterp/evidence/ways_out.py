"""By which ways the letter that layer 0 has found leaves it, in models of the puzzle `recombination` of two layers.

    asked = with_shares(rows)                                   # rows of `questions.recombination.measure`
    ways_table(asked, {"DCMHA": 10, "plain": 10}, "seen", WAYS)
    largest_ways(asked, "DCMHA", "seen", WAYS)
    sign_verdict(beside_the_largest(shares_of(asked, "DCMHA", "seen", CHANGE), QUERY, WAYS), QUERY, OTHER_WAY, ...)

A way is a group of edges, over all heads. The ways are apart, but act together, so shares need not add up to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from dcinterp.evidence.pooled_edges import FLOOR, share_cells, shares_of
from dcinterp.support.text import markdown_table

CHANGE = "letter"
"""Of `questions.recombination.CHANGES`: what goes a way is the letter of the fact that is asked for."""
POST_WEIGHTS, QUERY = "L0 -> L1 post weights", "L0 -> L1 query"
WAYS = (POST_WEIGHTS, "L0 -> L1 pre weights", QUERY, "L0 -> L1 key", "L0 -> L1 value", "L0 -> logits")
OTHER_WAY = "largest other way"


def ways_table(rows: pd.DataFrame, trained: Mapping[str, int], part: str, ways: Sequence[str]) -> str:
    """A column for every arm: how many models were asked, and what each way carries, as Markdown.

    Args:
        rows: of `with_shares`, of all arms.
        trained: {arm: how many models there are}.
        part: of the puzzle.
        ways: the groups, a row each.
    """
    heads, columns = ["to"], []
    for arm, number in trained.items():
        shares = shares_of(rows, arm, part, CHANGE)
        heads.append(f"{arm}: {len(shares)} of {number}")
        columns.append(share_cells(shares, ways))
    return markdown_table(heads, [list(row) for row in zip(map(place, ways), *columns, strict=True)])


def largest_ways(rows: pd.DataFrame, arm: str, part: str, ways: Sequence[str]) -> str:
    """In how many models of an arm which way has the largest share, as a line of Markdown.

    Args:
        rows, part, ways: as in `ways_table`.
        arm: the arm.
    """
    counted = count_largest(shares_of(rows, arm, part, CHANGE), ways).items()
    told = [f"{place(way)} in {number}" if way else f"none with {FLOOR:.0%} in {number}" for way, number in counted]
    return f"- {arm}: " + (", ".join(told) or "no model was asked")


def count_largest(shares: pd.DataFrame, ways: Sequence[str]) -> dict[str, int]:
    """{way: in how many models its share is the largest}, the most first; last "", where none has `FLOOR`.

    Args:
        shares: of `shares_of`.
        ways: those that are held against each other; what the models do not have is left out.
    """
    own = shares[[way for way in ways if way in shares]]
    clear = own.max(axis=1) >= FLOOR
    counted = {str(way): int(number) for way, number in own[clear].idxmax(axis=1).value_counts().items()}
    return counted | ({} if clear.all() else {"": int((~clear).sum())})


def beside_the_largest(shares: pd.DataFrame, way: str, ways: Sequence[str]) -> pd.DataFrame:
    """[seed, group] of one way, and of the largest of the others (`OTHER_WAY`), for `sign_verdict`.

    Args:
        shares: of `shares_of`.
        way: the one.
        ways: all that are held against each other; those that the models do not have are left out.

    Raises:
        ValueError: a model lacks a share that others have.
    """
    others = [each for each in ways if each in shares and each != way]
    if shares[others].isna().any(axis=None):
        raise ValueError("A model lacks the share of a way that others have.")
    return shares.reindex(columns=[way]).assign(**{OTHER_WAY: shares[others].max(axis=1)})


def place(way: str) -> str:
    """Where a way ends, as a row of a table: "L1 query"; with where it begins if that is not layer 0 itself."""
    source, target = way.split(" -> ")
    return target if source == "L0" else f"{target}, from {source}"
