"""Who may look at whom: causal order and windows as a rule, padding as a boolean mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dcinterp.shapes import Mask


@dataclass(frozen=True)
class Sight:
    """Queries are the last positions of the keys' axis; each sees the keys up to itself, within `window` of them.

    As a rule it costs no memory, and kernels skip what it hides. `allowed` hides more (padding), pair by pair.
    """

    causal: bool = True
    window: int | None = None
    allowed: Mask | None = None

    def dense(self, queries: int, keys: int, device: torch.device) -> Mask | None:
        """True where a query may look at a key; None when every query sees every key."""
        if not self.causal:
            return self.allowed
        slots = torch.arange(keys, device=device)
        mask = attention_mask(slots[keys - queries :], slots, window=self.window)
        return mask if self.allowed is None else mask & self.allowed

    def readable(self, queries: int, keys: int, device: torch.device) -> Mask | None:
        """`dense` of the last `queries` positions, and False in the rows of padding: their scores are nobody's.

        `allowed` may have fewer rows than that. With the rule of causal order it hides padding, which is what its last
        row hides: the last position sees all tokens there are.
        """
        if not self.causal or self.allowed is None:
            return self.dense(queries, keys, device)
        tokens = self.allowed[:, :, -1:]
        return Sight(window=self.window).dense(queries, keys, device) & tokens & tokens[..., -queries:].mT


EVERYWHERE = Sight(causal=False)


def as_sight(mask: Mask | Sight | None) -> Sight:
    """A rule from a rule, a boolean mask, or None (everything is visible)."""
    if isinstance(mask, Sight):
        return mask
    return EVERYWHERE if mask is None else Sight(causal=False, allowed=mask)


def attention_mask(
    query_slots: Int[Tensor, " query"],
    key_slots: Int[Tensor, " key"],
    *,
    window: int | None = None,
    padding: Int[Tensor, "batch all_keys"] | None = None,
) -> Mask:
    """True where the query in slot t may look at the key in slot s: s <= t, s > t - window, and s is no padding.

    Slots count from the start of the (cached) sequence, padding included. Every query may look at itself, so that
    the row of a padding token is finite too; nobody else ever looks at it.

    Args:
        query_slots, key_slots: slots of the rows and columns.
        window: how many keys, its own included, a query sees; None for all.
        padding: 1 for a token and 0 for padding, over slots 0, 1, ...
    """
    ahead = query_slots[:, None] - key_slots[None, :]
    allowed = ahead >= 0
    if window is not None:
        allowed &= ahead < window
    allowed = allowed[None, None]
    if padding is not None:
        allowed = allowed & padding[:, key_slots].bool()[:, None, None, :] | (ahead == 0)[None, None]
    return allowed


def mask_scores(scores: Tensor, mask: Mask | None) -> Tensor:
    """`scores` with the lowest finite number where `mask` is False (finite, so that a hook that scales a score
    by zero does not make a NaN of it)."""
    return scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
