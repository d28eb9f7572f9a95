"""A metric's credit for one prompt, shared among the edges of its layers: what edge scores of any sort are made of.

explainer = EdgeExplainer(bridge, ids, stage="post", method="recomputed")
layers, integrals = explainer.scores(metric, [0, 1, 2])
explainer.screen(metric, [0, 1, 2], 8)          # the edges to measure: the strongest by several rules
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.branches import NAMES
from dcinterp.mechanism.edge_removal import removal_effects
from dcinterp.mechanism.edge_rules import RULES, EdgeQuestion
from dcinterp.mechanism.edges import EdgeState, beyond_names, bias_credit, credit, site
from dcinterp.mechanism.interventions import Intervention, all_units
from dcinterp.mechanism.path_gradient import (
    Hooks,
    Integration,
    Metric,
    PathGradient,
    cost_line,
    for_depth,
    largest_difference,
    together,
)
from dcinterp.mechanism.stream import Stream
from dcinterp.support.errors import UserError, require_known
from dcinterp.support.progress import Progress, silent

MEASURING = ("screened", "ablation")
"""Methods whose scores are measured: of the edges that a screening names, or of all."""

EdgeMethod = Literal["screened", "ablation", "recomputed", "gradient", "halfway", "relp", "ig", "ig-counterfactual"]
"""What `method=` takes where edges are scored: the names of `MEASURING`, and of every rule."""

METHODS: tuple[str, ...] = get_args(EdgeMethod)

PREDICTOR = "recomputed"
"""The rule for edges that are not measured: the one that predicts best on the benchmark (docs/analyses/edges.md)."""

SCREEN = ("recomputed", "halfway", "relp")
"""The rules whose strongest edges are measured; where one is blind (a saturated softmax, a norm) another sees."""

METHOD_LABELS = {
    "screened": "gradient, the strongest edges measured",
    "ablation": "every edge measured",
    **{name: rule.label for name, rule in RULES.items()},
}

NEGLIGIBLE = 1e-4
"""Share of the largest score of a ranking below which it names no edge."""


class LayerCredit(NamedTuple):
    """The shares of the edges of one layer, and what the edges into every head must add up to.

    That is the credit of the head, less the part of a bias over heads where the model has one. beyond: the shares of
    what heads take from other pairs of tokens or from the previous layer, by the `terms`, which belong to the sum.
    """

    by_source: Float[Tensor, "branch head_from head_to source"]
    heads: Float[Tensor, " head_to"]
    beyond: Float[Tensor, "head_from head_to term"]
    terms: tuple[str, ...]


def check_edge_choices(path: str, method: str) -> None:
    """Refuse unknown names, and a joint path where there is none; UserError that lists the known ones."""
    require_known("method", method, METHODS)
    require_known("path", path, ("layer", "joint"))
    if path == "joint" and method not in ("ig", "gradient"):
        raise UserError(f"A joint path belongs to 'ig' and 'gradient'; {method!r} scores every edge by itself.")


@dataclass(frozen=True)
class EdgeExplainer:
    """One prompt, the prompt its path starts from (nothing when None), and how credit is taken.

    method: one of `METHODS`. frozen: hooks that hold the dynamic weights, see `frozen_hooks`.
    """

    bridge: Bridge
    ids: Tensor
    baseline: Tensor | None = None
    stage: str = "post"
    method: str = "ig"
    frozen: Hooks = ()
    integration: Integration = field(default_factory=Integration)

    @property
    def rule(self) -> str:
        """The rule that predicts: the method itself, or `PREDICTOR` where the strongest edges are measured."""
        return PREDICTOR if self.method in MEASURING else self.method

    def scores(
        self,
        metric: Metric,
        layers: list[int],
        path: str = "layer",
        per_source: bool = True,
        progress: Progress = silent,
    ) -> tuple[list[LayerCredit], list[PathGradient]]:
        """The credit of every layer, and the integrals behind it: one a layer, or one for all (path "joint")."""
        rule = RULES[self.rule]
        scored: list[LayerCredit] = []
        integrals = []
        # An integral takes a while: some layers come at a time, so that progress is seen.
        size = len(layers)
        if rule.passes is None:
            points = for_depth(self.integration, self.bridge.cfg.n_layers).steps
            paths = len(layers) if path == "layer" else 1
            progress(0, len(layers), cost_line(self.ids.shape[1], backward=paths * (points + 2), forward=paths))
            size = size if path == "joint" else together(size, points + 2, self.integration.batch_size)
        scale = self._largest(metric, layers) if rule.passes is None and path == "layer" else 0.0
        for some in [layers[first : first + size] for first in range(0, len(layers), size)]:
            ask = self._ask(metric, some, joint=path == "joint", scale=scale)
            slopes, found = rule.slopes(ask)
            integrals += found
            states = ask.states(self.ids)
            # With "ig-counterfactual" only the path comes from the other prompt; the edge is removed whole.
            from_other = self.baseline is not None and self.rule != "ig-counterfactual"
            others = ask.states(self.baseline) if from_other and self.baseline is not None else {}
            for layer in some:
                by_source = slopes[layer].edges(states[layer], others.get(layer))
                name = ask.sites[some.index(layer)]
                beyond = slopes[layer].beyond(states[layer], others.get(layer))
                heads = by_source.sum((0, 1, 3)) + beyond.sum((0, 2))
                if rule.additive:
                    moved = ask.ends[name] - (ask.starts[name] if from_other else 0)
                    g = slopes[layer].g  # type: ignore[attr-defined]  # additive rules are linear
                    heads = self._heads(moved[0] * g) - _bias(states[layer], others.get(layer), g)
                shared = by_source if per_source else by_source.sum(-1, keepdim=True)
                terms = tuple(beyond_names(states[layer]))
                scored.append(LayerCredit(_plain(shared), _plain(heads), _plain(beyond), terms))
                progress(len(scored), len(layers), f"layer {layer}")
        return scored, integrals

    def screen(self, metric: Metric, layers: list[int], k: int) -> list[Intervention]:
        """The edges to measure: by each rule of `SCREEN` the k strongest between two heads, and 2 k of single heads.

        With method "ablation" all edges that there are. Cost: `passes` of the rules.
        """
        if self.method == "ablation":
            return self._all(layers)
        ask = self._ask(metric, layers, gaps=False)
        states = ask.states(self.ids)
        others = {} if self.baseline is None else ask.states(self.baseline)
        rankings = []
        for rule in SCREEN:
            slopes, _ = RULES[rule].slopes(ask)
            scores = [slopes[layer].edges(states[layer], others.get(layer)).sum(-1) for layer in layers]
            rankings.append(torch.stack(scores))
        places = union_of_rankings(rankings, k)
        return [Intervention("edge", layers[i], self.stage, NAMES[b], h, f) for i, b, f, h in places]

    def measure(self, metric: Metric, edges: Sequence[Intervention]) -> Float[Tensor, " edge"]:
        """The effect of removing each edge alone; with a baseline, of setting it to what it is in that prompt."""
        return removal_effects(
            self.bridge,
            self.ids,
            metric,
            edges,
            stage=self.stage,
            baseline=self.baseline,
            frozen=self.frozen,
            batch_size=4 * self.integration.batch_size,  # nothing is kept for a backward pass
        )

    def with_measured(
        self, metric: Metric, layers: list[int], predicted: Float[Tensor, "layer branch head_from head_to"], k: int
    ) -> tuple[Float[Tensor, "layer branch head_from head_to"], list[Intervention], Float[Tensor, " edge"]]:
        """The scores with measured effects in place of those that were measured; which these are; and their effects.

        The largest effect comes first.
        """
        edges = self.screen(metric, layers, k)
        if not edges:
            return predicted, [], torch.zeros(0)
        effects = _plain(self.measure(metric, edges))
        order = effects.abs().argsort(descending=True, stable=True).tolist()
        edges, effects = [edges[i] for i in order], effects[order]
        scores = predicted.clone()
        for edge, effect in zip(edges, effects, strict=True):
            scores[place(edge, layers)] = effect.to(scores)
        return scores, edges, effects

    def _all(self, layers: list[int]) -> list[Intervention]:
        if not stages_of(self.bridge):
            heads = range(self.bridge.cfg.n_heads)
            return [Intervention("edge", i, self.stage, "skip", h, h) for i in layers for h in heads]
        return [edge for edge in all_units(self.bridge, "edge", self.stage) if edge.layer in layers]

    @cached_property
    def _stream(self) -> Stream:
        return Stream(self.bridge, self.ids, self.frozen)

    def _largest(self, metric: Metric, layers: list[int]) -> float:
        """The largest metric difference of a layer, which the gaps of layers that hardly matter are measured by."""
        ask = self._ask(metric, layers)
        start_of = None if self.baseline is None else ask.starts.__getitem__
        names = [[site(self.bridge, layer, self.stage)] for layer in layers]
        return largest_difference(self._stream, metric, names, start_of, self.integration.batch_size)

    def _ask(
        self, metric: Metric, layers: list[int], *, joint: bool = False, gaps: bool = True, scale: float = 0.0
    ) -> EdgeQuestion:
        return EdgeQuestion(
            self.bridge,
            self.ids,
            metric,
            self.stage,
            tuple(layers),
            self.baseline,
            joint,
            self.frozen,
            self.integration,
            gaps,
            self._stream,
            scale,
        )

    def _heads(self, product: Tensor) -> Tensor:
        head = 1 if self.stage == "post" else 0  # [pos, head, d_head] and [head, query, key]
        return product.movedim(head, 0).flatten(1).sum(1)


def _bias(state: EdgeState, other: EdgeState | None, g: Tensor) -> Float[Tensor, " head_to"]:
    """The credit of a bias over heads, which is no head's attention and so belongs to no edge."""
    here = bias_credit(state, credit(state, g))
    return here if other is None else here - bias_credit(other, credit(other, g))


def union_of_rankings(
    rankings: Sequence[Float[Tensor, "layer branch head_from head_to"]], k: int
) -> list[tuple[int, ...]]:
    """The places of the `k` edges of largest |score| between two heads in each ranking, and of the 2 k of single heads.

    A gate or the skip scales a head's own attention. Their effects are the larger ones, and would crowd out others;
    they are also the ones that rankings get wrong most often.
    """
    chosen: dict[tuple[int, ...], None] = {}
    for scores in rankings:
        sizes = scores.abs()
        own = torch.eye(sizes.shape[-1], dtype=torch.bool, device=sizes.device).expand_as(sizes)
        for ranked, number in ((sizes.masked_fill(own, 0), k), (sizes.masked_fill(~own, 0), 2 * k)):
            order = ranked.flatten().argsort(descending=True, stable=True)[:number]
            order = order[ranked.flatten()[order] > NEGLIGIBLE * sizes.max()]
            axes = torch.unravel_index(order, ranked.shape)
            chosen |= dict.fromkeys(zip(*(axis.tolist() for axis in axes), strict=True))
    return list(chosen)


def place(edge: Intervention, layers: Sequence[int]) -> tuple[int, int, int, int]:
    """Where an edge is in scores [layer, branch, head_from, head_to] of these layers."""
    assert edge.head_from is not None
    assert edge.head is not None
    return list(layers).index(edge.layer), NAMES.index(edge.name), edge.head_from, edge.head


def _plain(tensor: Tensor) -> Tensor:
    """Detached, on the CPU, at least in single precision."""
    return tensor.detach().cpu().to(torch.promote_types(tensor.dtype, torch.float32))
