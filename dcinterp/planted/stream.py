"""Which channel of the residual stream of a planted model is used for what.

    token      one channel a word, written by the embedding
    position   one channel a position, written by the position embedding
    previous   one channel a name: the word before this one, written by the previous-token heads of layer 0
    question   one channel a question word, written by the question heads of layer 0
    answer     one channel an answer word, read by the unembedding
    dead       the rest: decoys write here, and nothing reads it
    middle     one channel a kind, the last ones: what layer 1 of some circuits writes and layer 2 reads

Channels are orthogonal, so what one part writes no other part reads by accident.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.planted.words import ANSWERS, CONTEXT, KINDS, NAMES, QUESTIONS, VOCABULARY

Direction = Float[Tensor, " d_model"]

SPACES: dict[str, tuple[str, ...]] = {
    "token": VOCABULARY,
    "position": tuple(str(p) for p in range(CONTEXT)),
    "previous": NAMES,
    "question": QUESTIONS,
    "answer": ANSWERS,
}


class Stream:
    """Unit directions of a residual stream of `width` channels, by space and word."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._channel = {
            (space, word): number
            for number, (space, word) in enumerate((space, word) for space, words in SPACES.items() for word in words)
        }
        self.used = len(self._channel)
        assert self.used + len(KINDS) < width, "no room for dead channels"

    def at(self, space: str, word: str) -> Direction:
        """The channel of one word."""
        return self._unit(self._channel[space, word])

    def any_of(self, space: str, words: Iterable[str]) -> Direction:
        """1 when the space holds one of these words."""
        return torch.stack([self.at(space, word) for word in words]).sum(0)

    def always(self) -> Direction:
        """1 at every position."""
        return self.any_of("position", SPACES["position"])

    def dead(self, number: int) -> Direction:
        """One of the channels that nothing reads; numbers wrap round."""
        return self._unit(self.used + number % (self.width - self.used))

    def middle(self, kind: str) -> Direction:
        """The channel by which layer 1 tells layer 2 a kind; at the far end, so that others stay where they are."""
        return self._unit(self.width - 1 - KINDS.index(kind))

    @property
    def idle(self) -> range:
        """The dead channels, by number."""
        return range(self.used, self.width - len(KINDS))

    def _unit(self, channel: int) -> Direction:
        direction = torch.zeros(self.width, dtype=torch.float64)
        direction[channel] = 1
        return direction
