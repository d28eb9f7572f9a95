"""A metric's credit for one prompt, shared among the edges of its layers: what edge scores of any sort are made of.

explainer = EdgeExplainer(bridge, ids, stage="post")
layers, integrals = explainer.scores(metric, [0, 1, 2])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.edges import bias_credit, credit, edge_scores, edge_state, layer_taps, site
from dcinterp.mechanism.path_gradient import Hooks, Integration, Metric, PathGradient, path_gradient
from dcinterp.support.progress import Progress, silent


class LayerCredit(NamedTuple):
    """The shares of the edges of one layer, and what the edges into every head must add up to.

    That is the credit of the head, less the part of a bias over heads where the model has one.
    """

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
        scored: list[LayerCredit] = []
        integrals = []
        for together in moved:
            names = [site(self.bridge, layer, self.stage) for layer in together]
            ends = self._cache(self.ids, names)
            starts = None if self.baseline is None else self._cache(self.baseline, names)
            integral = path_gradient(
                self.bridge,
                self.ids,
                metric,
                ends,
                starts,
                method=self.method,
                hooks=self.frozen,
                integration=self.integration,
            )
            integrals.append(integral)
            for layer in (each for each in together if each in layers):
                name = site(self.bridge, layer, self.stage)
                difference = ends[name] if starts is None else ends[name] - starts[name]
                scored.append(self._shared(layer, integral.average[name], difference[0], per_source))
                progress(len(scored), len(layers), f"layer {layer}")
        return scored, integrals

    def _shared(self, layer: int, average: Tensor, moved: Tensor, per_source: bool) -> LayerCredit:
        total, bias = self._edges(layer, self.ids, average)
        if self.baseline is not None:
            before, bias_before = self._edges(layer, self.baseline, average)
            total, bias = total - before, bias - bias_before
        head = 1 if self.stage == "post" else 0  # [pos, head, d_head] and [head, query, key]
        heads = (moved * average).movedim(head, 0).flatten(1).sum(1)
        shared = total if per_source else total.sum(-1, keepdim=True)
        return LayerCredit(_plain(shared), _plain(heads - bias))

    def _edges(self, layer: int, ids: Tensor, average: Tensor) -> tuple[Tensor, Tensor]:
        """The credit of all edges on this prompt, and that of a bias over heads."""
        cache = self._cache(ids, layer_taps(self.bridge, layer, self.stage))
        state = edge_state(self.bridge, cache, layer, self.stage)
        on_entries = credit(state, average)
        return edge_scores(state, on_entries), bias_credit(state, on_entries)

    def _cache(self, ids: Tensor, names: list[str]) -> dict[str, Tensor]:
        with torch.no_grad():
            cache = self.bridge.run_with_cache(ids, names_filter=names)[1]
        return {name: cache[name] for name in names}


def _plain(tensor: Tensor) -> Tensor:
    """Detached, on the CPU, at least in single precision."""
    return tensor.detach().cpu().to(torch.promote_types(tensor.dtype, torch.float32))
