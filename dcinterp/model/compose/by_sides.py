"""What composers have in common whose maps over heads come from the query token, the key token and a static map."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from dcinterp.model.compose.base import ComposeConfig, Composer
from dcinterp.model.compose.static import StaticMap


class ComposerBySides(Composer):
    """A static map, a query side and a key side, each as the config asks; `SIDE` makes a side of the config."""

    SIDE: ClassVar[type[nn.Module]]

    def __init__(self, config: ComposeConfig) -> None:
        super().__init__(config)
        self.static = StaticMap(config) if config.compose_static else None
        self.query = self.SIDE(config) if config.compose_query_wise else None
        self.key = self.SIDE(config) if config.compose_key_wise else None

    @property
    def sides(self) -> list[Any]:
        """The sides that there are, the query's first."""
        return [side for side in (self.query, self.key) if side is not None]

    @torch.no_grad()
    def start_at_identity(self) -> None:
        if self.static is not None:
            self.static.start_at_identity(self.config.compose_skip)
        elif not self.config.compose_skip:
            self.refuse_identity("it has neither the skip nor a static map")
        for side in self.sides:
            side.start_at_identity()
