r"""The rules that predict what removing an edge does to a metric: one table, one function a rule.

    predicted[e] = <x_e, g>                              linear rules; x_e: what the edge adds at its site, g: a slope
    predicted[e] = <softmax(S) - softmax(S - x_e), g>    "recomputed", of an edge that enters a softmax

| rule | g | passes |
|---|---|---|
| `ig` | the gradient averaged from nothing (z = 0, equal scores) to the layer as it is | one integral a layer |
| `ig-counterfactual` | the same from a counterfactual prompt; the edge is still removed whole | one integral a layer |
| `gradient` | the gradient as the model is (attribution patching) | 1 |
| `halfway` | the gradient with the layer at half its size, every layer in a row of its own | 1, of a row a layer |
| `recomputed` | the gradient; in stage `pre` behind the softmax, which is computed anew for every edge | 1 |
| `relp` | the gradient of a model made linear: see dcinterp.mechanism.linearised | 1 |

Sources: integrated gradients (Sundararajan et al. 2017), attribution patching (Nanda 2023; Syed et al. 2023), the
softmax computed anew as in AtP* (Kramár et al. 2024), the linear rules of RelP (Jafari et al. 2025) and LRP.
How well each predicts is measured by `dcinterp.edge_benchmark`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, einsum

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.branches import NAMES
from dcinterp.mechanism.edges import (
    EdgeState,
    beyond_names,
    beyond_parts,
    beyond_scores,
    credit,
    edge_parts,
    edge_scores,
    edge_state,
    layer_taps,
    site,
)
from dcinterp.mechanism.linearised import Linearised
from dcinterp.mechanism.path_gradient import Hooks, Integration, Metric, Move, PathGradient, Paths, for_depth
from dcinterp.mechanism.stream import Stream
from dcinterp.support.errors import UserError
from dcinterp.support.wide import wide

BySource = Float[Tensor, "branch head_from head_to source"]
Beyond = Float[Tensor, "head_from head_to term"]
HALF = 0.5


class Slope(Protocol):
    """What a rule says about one layer."""

    def edges(self, state: EdgeState, other: EdgeState | None = None) -> BySource:
        """Every edge's predicted effect, minus (for linear rules) or towards that of the same edge in `other`."""

    def beyond(self, state: EdgeState, other: EdgeState | None = None) -> Beyond:
        """The same for what heads take from other pairs of tokens and from the previous layer."""

    def effect(self, moved: Float[Tensor, "unit ..."]) -> Float[Tensor, " unit"]:
        """The predicted effect of taking `moved` away at the site of the layer."""


@dataclass(frozen=True)
class Linear:
    """An effect that is proportional to what is taken away; g is [as the site]."""

    g: Tensor

    def edges(self, state: EdgeState, other: EdgeState | None = None) -> BySource:
        scores = edge_scores(state, credit(state, self.g))
        return scores if other is None else scores - edge_scores(other, credit(other, self.g))

    def beyond(self, state: EdgeState, other: EdgeState | None = None) -> Beyond:
        scores = beyond_scores(state, credit(state, self.g))
        return scores if other is None else scores - beyond_scores(other, credit(other, self.g))

    def effect(self, moved: Float[Tensor, "unit ..."]) -> Float[Tensor, " unit"]:
        return einsum("u...,...->u", moved, self.g)


@dataclass(frozen=True)
class Resoftmaxed:
    """An effect through the softmax of the changed scores: exact up to the attention weights, linear behind them.

    scores: composed and masked; g: the gradient at their softmax. By source: what the weight moved to or from a key
    does, counted from the mean of its row (<A, g>); moving all weights alike does nothing, and gets nothing.
    """

    scores: Float[Tensor, "head query key"]
    g: Float[Tensor, "head query key"]

    @cached_property
    def attention(self) -> Float[Tensor, "head query key"]:
        return self.scores.softmax(-1)

    @cached_property
    def centred(self) -> Float[Tensor, "head query key"]:
        return self.g - (self.attention * self.g).sum(-1, keepdim=True)

    def edges(self, state: EdgeState, other: EdgeState | None = None) -> BySource:
        out = state.attention.new_zeros(len(NAMES), *state.base.shape, self.scores.shape[-1])
        mine, others = (
            (((branch, f, to.start, to.stop), part) for branch, f, to, part in (edge_parts(of) if of else ()))
            for of in (state, other)
        )
        for (branch, f, *ends), part in _minus(mine, others):
            to = slice(*ends)
            moved = self.attention[to] - (self.scores[to] - part).softmax(-1)
            out[branch, f, to] = (moved * self.centred[to]).sum(1)
        return out

    def beyond(self, state: EdgeState, other: EdgeState | None = None) -> Beyond:
        out = state.attention.new_zeros(*state.base.shape, len(beyond_names(state)))
        mine, others = (
            (((place, f), part) for place, f, part in (beyond_parts(of) if of else ())) for of in (state, other)
        )
        for (place, f), part in _minus(mine, others):
            moved = self.attention - (self.scores - part).softmax(-1)
            out[f, :, place] = (moved * self.g).sum((1, 2))
        return out

    def effect(self, moved: Float[Tensor, "unit ..."]) -> Float[Tensor, " unit"]:
        return einsum("uhts,hts->u", self.attention - (self.scores - moved).softmax(-1), self.g)


def _minus(
    mine: Iterable[tuple[tuple[int, ...], Tensor]], others: Iterable[tuple[tuple[int, ...], Tensor]]
) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Parts of one prompt minus those of another, by their places; a part that one of them lacks is zero there."""
    left = dict(others)
    for place, part in mine:
        yield place, part - left.pop(place, 0)
    for place, part in left.items():
        yield place, -part


@dataclass(frozen=True)
class EdgeQuestion:
    """What a rule is asked: slopes of `metric` at the `layers` of one prompt.

    baseline: the prompt that paths start from (nothing when None). joint: all layers of the model on one path.
    hooks: frozen weights, see `frozen_hooks`. gaps: whether anybody asks what a rule without a path misses.
    stream: the prompt's, where it is at hand; scale: as in `Paths.integrals`.
    """

    bridge: Bridge
    ids: Tensor
    metric: Metric
    stage: str
    layers: tuple[int, ...]
    baseline: Tensor | None = None
    joint: bool = False
    hooks: Hooks = ()
    integration: Integration = field(default_factory=Integration)
    gaps: bool = True
    stream: Stream | None = None
    scale: float = 0.0

    @cached_property
    def sites(self) -> list[str]:
        return [site(self.bridge, layer, self.stage) for layer in self.layers]

    def cache(self, ids: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        with torch.no_grad():
            found = self.bridge.run_with_cache(ids, names_filter=list(names))[1]
        return {name: found[name] for name in names}

    def states(self, ids: Tensor) -> dict[int, EdgeState]:
        """Every layer's edges on a prompt, by one forward pass."""
        names = [name for layer in self.layers for name in layer_taps(self.bridge, layer, self.stage)]
        cache = self.cache(ids, names)
        return {layer: edge_state(self.bridge, cache, layer, self.stage) for layer in self.layers}

    @cached_property
    def ends(self) -> dict[str, Tensor]:
        return self.cache(self.ids, self.sites)

    @cached_property
    def starts(self) -> dict[str, Tensor]:
        if self.baseline is None:
            return {name: torch.zeros_like(x) for name, x in self.ends.items()}
        return self.cache(self.baseline, self.sites)


Answered = tuple[Mapping[int, Slope], list[PathGradient]]
"""Slopes by layer, and the integrals that they rest on: one a layer, or one for all on a joint path."""


def _integrated(ask: EdgeQuestion, method: str = "ig") -> Answered:
    groups = [tuple(range(ask.bridge.cfg.n_layers))] if ask.joint else [(layer,) for layer in ask.layers]
    moves = []
    for layers in groups:
        names = [site(ask.bridge, layer, ask.stage) for layer in layers]
        moves.append(Move(ask.cache(ask.ids, names), None if ask.baseline is None else ask.cache(ask.baseline, names)))
    rule = for_depth(ask.integration, ask.bridge.cfg.n_layers)
    paths = Paths(ask.stream or Stream(ask.bridge, ask.ids, ask.hooks), ask.metric, rule.batch_size)
    integrals = paths.gradients(moves) if method == "gradient" else paths.integrals(moves, rule, ask.scale)
    slopes: dict[int, Slope] = {
        layer: Linear(integral.average[site(ask.bridge, layer, ask.stage)])
        for layers, integral in zip(groups, integrals, strict=True)
        for layer in layers
        if layer in ask.layers
    }
    return slopes, integrals


def _from_counterfactual(ask: EdgeQuestion) -> Answered:
    if ask.baseline is None:
        raise UserError("'ig-counterfactual' needs a prompt for its path to start from; give baseline=.")
    return _integrated(ask)


def _gradient(ask: EdgeQuestion) -> Answered:
    if ask.joint:
        return _integrated(ask, "gradient")
    found, actual = gradients(ask, ask.sites)
    slopes = {layer: Linear(found[name][0]) for layer, name in zip(ask.layers, ask.sites, strict=True)}
    return slopes, _ends_of_paths(ask, {layer: slope.g for layer, slope in slopes.items()}, actual)


def _halfway(ask: EdgeQuestion) -> Answered:
    found, _ = gradients(ask, ask.sites, share=HALF)
    averages = {layer: found[name][row] for row, (layer, name) in enumerate(zip(ask.layers, ask.sites, strict=True))}
    return {layer: Linear(g) for layer, g in averages.items()}, _ends_of_paths(ask, averages)


def _recomputed(ask: EdgeQuestion) -> Answered:
    if ask.stage == "post":
        return _gradient(ask)
    names = [softmax_site(ask.bridge, layer) for layer in ask.layers]
    found, actual = gradients(ask, [*ask.sites, *names])
    scores = ask.cache(ask.ids, [f"blocks.{layer}.attn.hook_attn_scores" for layer in ask.layers])
    slopes: dict[int, Slope] = {
        layer: Resoftmaxed(score[0], found[name][0])
        for layer, score, name in zip(ask.layers, scores.values(), names, strict=True)
    }
    averages = {layer: found[name][0] for layer, name in zip(ask.layers, ask.sites, strict=True)}
    return slopes, _ends_of_paths(ask, averages, actual)


def _relp(ask: EdgeQuestion) -> Answered:
    found, actual = gradients(ask, ask.sites, linearised=True)
    averages = {layer: found[name][0] for layer, name in zip(ask.layers, ask.sites, strict=True)}
    return {layer: Linear(g) for layer, g in averages.items()}, _ends_of_paths(ask, averages, actual)


@dataclass(frozen=True)
class EdgeRule:
    """One rule. label: for people; passes: forward and backward passes, None for an integral a layer."""

    label: str
    slopes: Callable[[EdgeQuestion], Answered]
    passes: int | None = 1
    additive: bool = True
    """Whether its edges add up to what their head (or its scores) gets."""


RULES: dict[str, EdgeRule] = {
    "ig": EdgeRule("integrated gradients", _integrated, None),
    "ig-counterfactual": EdgeRule("integrated gradients from a counterfactual prompt", _from_counterfactual, None),
    "gradient": EdgeRule("gradient x edge", _gradient),
    "halfway": EdgeRule("gradient with the layer at half its size", _halfway),
    "recomputed": EdgeRule("gradient, with the softmax computed anew", _recomputed, additive=False),
    "relp": EdgeRule("gradient of the linearised model (RelP)", _relp),
}
"""By the name that `method=` takes; a new rule is one function and one line here."""


def gradients(
    ask: EdgeQuestion, names: Sequence[str], *, share: float = 1.0, linearised: bool = False
) -> tuple[dict[str, Tensor], float]:
    """The metric's gradient at several hooks of one forward pass, [row, ...] by hook, and the metric.

    Args:
        names: hooks; gradients flow through later ones.
        share: below 1, the pass has a row for every layer, in which the site of that layer alone is moved to this
            share of the way from its start.
        linearised: through a model whose norms, softmax and activations were made linear.

    Cost: one forward and backward pass, of one row or of one a layer.
    """
    leaves: dict[str, Tensor] = {}
    rows, starts = (len(ask.layers), ask.starts) if share < 1 else (1, {})

    def listen(tensor: Tensor, hook: Any, name: str) -> Tensor:
        if name in starts:
            tensor, row, start = tensor.clone(), ask.sites.index(name), starts[name][0]
            tensor[row] = start + share * (tensor[row] - start)
        # A zero that is added: its gradient is that of the tensor, whether or not the model's own parameters have one.
        leaves[name] = torch.zeros_like(tensor, requires_grad=True)
        return tensor + leaves[name]

    hooks = [*ask.hooks, *((name, partial(listen, name=name)) for name in dict.fromkeys(names))]
    if linearised:  # where somebody listens to the pattern, the softmax is torch's own
        known = ask.bridge.hook_dict
        patterns = (f"blocks.{layer}.attn.hook_pattern" for layer in range(ask.bridge.cfg.n_layers))
        hooks += [(name, lambda tensor, hook: tensor) for name in patterns if name in known and name not in names]
    with torch.enable_grad():
        with Linearised(on=linearised):
            value = ask.metric(ask.bridge.run_with_hooks(ask.ids.expand(rows, -1), fwd_hooks=hooks))
        found = torch.autograd.grad(value.sum(), list(leaves.values()), allow_unused=True)
    both = zip(leaves.items(), found, strict=True)
    return {name: torch.zeros_like(leaf) if g is None else g for (name, leaf), g in both}, float(value[0].detach())


def softmax_site(bridge: Bridge, layer: int) -> str:
    """The hook that shows the softmax itself, before post-composition where there is one."""
    return f"blocks.{layer}.attn.{'post.hook_in' if 'post' in stages_of(bridge) else 'hook_pattern'}"


def _ends_of_paths(
    ask: EdgeQuestion, averages: Mapping[int, Tensor], actual: float | None = None
) -> list[PathGradient]:
    """What a rule without a path misses of each layer's difference, by one forward pass of a row a layer."""
    if not ask.gaps:
        return []
    starts = ask.starts

    def start(tensor: Tensor, hook: Any, name: str) -> Tensor:
        tensor = tensor.clone()
        tensor[ask.sites.index(name)] = starts[name][0]
        return tensor

    rows = len(ask.layers) + 1  # the last one is the prompt as it is
    with torch.no_grad():
        hooks = [*ask.hooks, *((name, partial(start, name=name)) for name in ask.sites)]
        values = ask.metric(ask.bridge.run_with_hooks(ask.ids.expand(rows, -1), fwd_hooks=hooks))
    whole = float(values[-1]) if actual is None else actual
    made = []
    for (layer, average), name, value in zip(averages.items(), ask.sites, values.tolist(), strict=False):
        moved = (ask.ends[name] - starts[name])[0]
        gap = whole - value - float((wide(moved) * wide(average)).sum())
        made.append(PathGradient({site(ask.bridge, layer, ask.stage): average}, value, whole, gap, 1))
    return made
