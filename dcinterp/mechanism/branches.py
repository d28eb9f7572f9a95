"""The table of branches as analyses and figures see it: the parts of a map over heads, and what these were once called.

The table itself is `dcinterp.model.compose.branch_table`; nothing here needs torch.
"""

from __future__ import annotations

from dcinterp.model.compose.branch_table import (
    ADDED,
    BRANCHES,
    BY_SIDE,
    DYNAMIC_WEIGHTS,
    HOOKS,
    NAMES,
    PREVIOUS_LAYER,
    Branch,
)
from dcinterp.support.errors import require_known

__all__ = ["ADDED", "BRANCHES", "BY_HOOK", "DYNAMIC_WEIGHTS", "FORMER_PARTS", "HOOKS", "NAMES", "PARTS", "PART_LABELS"]
__all__ += ["PREVIOUS_LAYER", "WEIGHTS", "Branch", "part_name"]

BY_HOOK: dict[str, Branch] = {branch.hook: branch for branch in BRANCHES.values()}

WEIGHTS = tuple(weight for branch in BRANCHES.values() for weight in branch.weights)
"""Dynamic weights, in the order of the branches that they make."""

PARTS = ("base", *(branch.name for branch in BY_SIDE))
"""Of a map over heads: what no token changes (the skip and W_b), and what the query and the key token add."""

PART_LABELS = {"total": "whole map", "base": "skip and W_b"} | {branch.name: branch.label for branch in BY_SIDE}

FORMER_PARTS = {"query_low_rank": "qp", "query_gate": "qg", "key_low_rank": "kp", "key_gate": "kg"}
"""What parts were called in version 0.1: saved results, arguments and links may still say so."""


def part_name(name: str) -> str:
    """The part of a map over heads that is called so, now or in version 0.1; "total" is one too.

    Raises:
        UserError: there is no such part; the message suggests one.
    """
    name = FORMER_PARTS.get(name, name)
    require_known("part of a map", name, PART_LABELS)
    return name
