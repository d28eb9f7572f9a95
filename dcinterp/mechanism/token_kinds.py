"""What kind of token a text asks for next: one that induction could find, a closing bracket, a name that was seen.

kinds_of(ids, words)        # a place in KINDS for every token of a row, by what stands before it in the row
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from jaxtyping import Int
from torch import Tensor

KINDS = ("repeated", "bracket", "seen name", "other")
"""`repeated`: it has followed the same token before in the row, so that induction finds it. Else `bracket`: it begins
with a closing bracket. Else `seen name`: letters and digits that stand earlier in the row, behind another token."""

_NAME = re.compile(r"\s*[^\W\d]\w*")


def kinds_of(ids: Int[Tensor, "row pos"], words: Mapping[int, str]) -> Int[Tensor, "row pos"]:
    """The kind of every token of every row, as places in KINDS.

    Args:
        ids: rows of tokens; a row is all that its tokens can be found in.
        words: the text of every id in the rows.
    """
    return torch.tensor([_kinds(row, words) for row in ids.tolist()]).reshape(ids.shape)


def _kinds(row: list[int], words: Mapping[int, str]) -> list[int]:
    seen, pairs, found = set[int](), set[tuple[int, int]](), []
    for place, token in enumerate(row):
        pair = (row[place - 1], token) if place else None
        if pair in pairs:
            kind = "repeated"
        elif words[token].lstrip().startswith((")", "]", "}")):
            kind = "bracket"
        elif token in seen and _NAME.fullmatch(words[token]):
            kind = "seen name"
        else:
            kind = "other"
        found.append(KINDS.index(kind))
        seen.add(token)
        if pair is not None:
            pairs.add(pair)
    return found
