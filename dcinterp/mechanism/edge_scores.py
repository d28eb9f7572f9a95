"""A metric's credit for one prompt, shared among the edges of its layers: what edge scores of any sort are made of.

explainer = EdgeExplainer(bridge, ids, stage="post")
layers, integrals = explainer.scores(metric, [0, 1, 2])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.edges import credit, edge_scores, edge_state, layer_taps, site
from dcinterp.mechanism.path_gradient import (
    Hooks,
    Integration,
    Metric,
    Move,
    PathGradient,
    Paths,
    cost_line,
    for_depth,
    largest_difference,
    together,
)
from dcinterp.mechanism.stream import Stream
from dcinterp.support.progress import Progress, silent


class LayerCredit(NamedTuple):
    """The shares of the edges of one layer, and what the edges into every head must add up to."""

    by_source: Float[Tensor, "branch head_from head_to source"]
    heads: Float[Tensor, " head_to"]


@dataclass(frozen=True)
class EdgeExplainer:
    """One prompt, the prompt its path starts from (nothing when None), and how credit is taken.

    frozen: hooks that hold the dynamic weights, see `frozen_hooks`.
    """

    bridge: Bridge
    ids: Tensor
    baseline: Tensor | None = None
    stage: str = "post"
    method: str = "ig"
    frozen: Hooks = ()
    integration: Integration = field(default_factory=Integration)

    def scores(
        self,
        metric: Metric,
        layers: list[int],
        path: str = "layer",
        per_source: bool = True,
        progress: Progress = silent,
    ) -> tuple[list[LayerCredit], list[PathGradient]]:
        """The credit of every layer, and the integrals behind it: one a layer, or one for all (path "joint")."""
        moved = [[layer] for layer in layers] if path == "layer" else [list(range(self.bridge.cfg.n_layers))]
        own = [[site(layer, self.stage) for layer in several] for several in moved]
        rule = for_depth(self.integration, self.bridge.cfg.n_layers)
        points = rule.steps if self.method == "ig" else 0
        rows = len(moved) * (points + 2)
        progress(0, len(layers), cost_line(self.ids.shape[1], backward=rows, forward=len(moved) * bool(points)))
        paths = Paths(self._stream, metric, rule.batch_size)
        start_of = None if self.baseline is None else lambda name: self._cache(self.baseline, [name])[name]
        scale = largest_difference(self._stream, metric, own, start_of, rule.batch_size) if points else 0.0
        scored: list[LayerCredit] = []
        integrals: list[PathGradient] = []
        size = together(len(moved), points + 2, rule.batch_size)
        for first in range(0, len(moved), size):
            names = own[first : first + size]
            # Read layer by layer: what lies between the first and the last need not be run twice.
            ends = [{name: self._cache(self.ids, [name])[name] for name in some} for some in names]
            starts = [None if start_of is None else {name: start_of(name) for name in some} for some in names]
            moves = [Move(x, b) for x, b in zip(ends, starts, strict=True)]
            found = paths.integrals(moves, rule, scale) if points else paths.gradients(moves)
            integrals += found
            for move, integral, several in zip(moves, found, moved[first : first + size], strict=True):
                for layer in (each for each in several if each in layers):
                    name = site(layer, self.stage)
                    change = move.ends[name] if move.starts is None else move.ends[name] - move.starts[name]
                    scored.append(self._shared(layer, integral.average[name], change[0], per_source))
                    progress(len(scored), len(layers), f"layer {layer}")
        return scored, integrals

    def _shared(self, layer: int, average: Tensor, moved: Tensor, per_source: bool) -> LayerCredit:
        total = self._edges(layer, self.ids, average)
        if self.baseline is not None:
            total = total - self._edges(layer, self.baseline, average)
        head = 1 if self.stage == "post" else 0  # [pos, head, d_head] and [head, query, key]
        heads = (moved * average).movedim(head, 0).flatten(1).sum(1)
        shared = total if per_source else total.sum(-1, keepdim=True)
        return LayerCredit(_plain(shared), _plain(heads))

    def _edges(self, layer: int, ids: Tensor, average: Tensor) -> Tensor:
        cache = self._cache(ids, layer_taps(self.bridge, layer, self.stage))
        state = edge_state(self.bridge, cache, layer, self.stage)
        return edge_scores(state, credit(state, average))

    @cached_property
    def _stream(self) -> Stream:
        return Stream(self.bridge, self.ids, self.frozen)

    @cached_property
    def _other(self) -> Stream | None:
        return None if self.baseline is None else Stream(self.bridge, self.baseline)

    def _cache(self, ids: Tensor | None, names: list[str]) -> dict[str, Tensor]:
        stream = self._other if self._other is not None and ids is self.baseline else self._stream
        return stream.read(names)


def _plain(tensor: Tensor) -> Tensor:
    """Detached, on the CPU, at least in single precision."""
    return tensor.detach().cpu().to(torch.promote_types(tensor.dtype, torch.float32))
