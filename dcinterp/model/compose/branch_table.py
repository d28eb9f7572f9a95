"""The one table of branches: how each is called, hooked and labelled, and what it is made of.

Every list of branches elsewhere comes from here. Imports nothing, so that figures and pages can have it without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Branch:
    """One term of the sum that composing is.

    name: in interventions, arguments and records; hook: its tensor, as in `blocks.1.attn.post.hook_o_kp`; weights: the
    names of the dynamic weights that it is made of; side: the position that these belong to; label: for people.
    """

    name: str
    hook: str
    weights: tuple[str, ...]
    side: Literal["query", "key", "none"]
    label: str


_TABLE = (
    Branch("skip", "o_b", (), "none", "own attention"),
    Branch("qp", "o_qp", ("w_q1", "w_q2"), "query", "query projection"),
    Branch("kp", "o_kp", ("w_k1", "w_k2"), "key", "key projection"),
    Branch("qg", "o_qg", ("w_qg",), "query", "query gate"),
    Branch("kg", "o_kg", ("w_kg",), "key", "key gate"),
)

BRANCHES: dict[str, Branch] = {branch.name: branch for branch in _TABLE}
"""By name, in the order in which the terms are added; the skip has the static map W_b with it."""

NAMES = tuple(BRANCHES)
HOOKS = tuple(branch.hook for branch in _TABLE)
"""The same order as `NAMES`."""

NEIGHBOURS, PREVIOUS = "o_kq", "o_prev"
"""Hooks of the terms that are no branches: what a pair takes from the pairs around it, and from the previous layer."""

PREVIOUS_LAYER = "previous layer"
"""How edges from there are labelled."""

TERMS = (*HOOKS, NEIGHBOURS, PREVIOUS)
"""All terms of the sum that composing is, in the order in which they are added."""

ADDED = tuple(branch.name for branch in _TABLE if branch.weights)
"""What composition adds to the skip."""

BY_SIDE = tuple(branch for side in ("query", "key") for branch in _TABLE if branch.side == side)
"""The branches with dynamic weights, all of the query side before those of the key side."""

DYNAMIC_WEIGHTS = tuple(weight for branch in BY_SIDE for weight in branch.weights)
"""In the order of the fields of `ComposeWeights`."""
