"""What the case study measures itself, beside the analyses that it combines.

    direct[l, h] = f(z) - f(z with z[l, h, last] ablated, every other head as it was)    the direct effect of a head
    shared[f]    = f(clean) - f(what head f's attention adds to the followed head's ablated)

f is the logit difference, logit[target] - logit[foil]. MLPs respond to both; later heads respond to the second only.
What an ablation puts in is a kind of dcinterp.mechanism.ablation; zero is measured beside every other kind.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.ablation import ABLATIONS, replacement
from dcinterp.mechanism.branches import ADDED, BRANCHES
from dcinterp.mechanism.edge_scores import EdgeExplainer
from dcinterp.mechanism.head_scores import head_scores
from dcinterp.mechanism.intervention_hooks import References, measure_effects
from dcinterp.mechanism.interventions import Intervention, all_units, checked
from dcinterp.mechanism.objective import Explanation
from dcinterp.mechanism.path_gradient import Metric
from dcinterp.mechanism.stream import Stream, first_layer, metric_of
from dcinterp.shapes import TokenIds
from dcinterp.support.errors import UserError

BATCH = 64
"""Rows of one forward pass; bounds the memory."""

EXHAUSTIVE = 512
"""With more edges than this, only the `SCREENED` with the largest gradient scores are ablated."""
SCREENED = 48

TAPS = {"before": "post.hook_in", "query_gate": "post.hook_o_qg", "key_gate": "post.hook_o_kg", "after": "hook_pattern"}


@dataclass(frozen=True)
class SourceAttention:
    """All heads' attention from the last position to one token: before and after composition, and what gates add."""

    before: Float[Tensor, "layer head"]
    after: Float[Tensor, "layer head"]
    query_gate: Float[Tensor, "layer head"]
    key_gate: Float[Tensor, "layer head"]


def source_attention(bridge: Bridge, ids: Tensor, key: int) -> SourceAttention:
    """The attention of every head of the model from the last position to `key`.

    Cost: one forward pass that keeps one number per head and tap.
    """
    layers, heads = bridge.cfg.n_layers, bridge.cfg.n_heads
    found: dict[str, dict[int, Tensor]] = {name: {} for name in TAPS}

    def keep(name: str, layer: int) -> Any:
        def hook(attention: Tensor, hook: Any) -> None:
            found[name][layer] = attention[0, :, -1, key].detach().float().cpu()

        return hook

    taps = [(f"blocks.{at}.attn.{tap}", keep(name, at)) for name, tap in TAPS.items() for at in range(layers)]
    with torch.no_grad():
        bridge.run_with_hooks(ids, fwd_hooks=[(name, hook) for name, hook in taps if name in bridge.hook_dict])
    # Without composition there is no attention before it; without gates nothing is added by them.
    instead = {"before": found["after"], "query_gate": {}, "key_gate": {}, "after": {}}
    return SourceAttention(
        **{
            name: torch.stack([rows.get(at, instead[name].get(at, torch.zeros(heads))) for at in range(layers)])
            for name, rows in found.items()
        }
    )


@dataclass(frozen=True)
class Ablator:
    """Ablations of one kind on one prompt, and the same with zero.

    values: what the kind puts in; z: the heads' own outputs by hook, [pos, head, d_head]; means: of the heads' outputs
    over the reference prompts.
    """

    bridge: Bridge
    ids: TokenIds
    kind: str
    values: References
    z: Mapping[str, Tensor]
    means: Mapping[str, Tensor]

    @classmethod
    def of(cls, bridge: Bridge, ids: TokenIds, kind: str, reference: Sequence[TokenIds], read: int = 0) -> Ablator:
        """Run the prompt and, where the kind needs them, the reference prompts, once for all that is measured.

        read: how many tokens of the answer `ids` ends with.
        """
        names = [f"blocks.{layer}.attn.hook_z" for layer in range(bridge.cfg.n_layers)]
        with torch.no_grad():
            cache = bridge.run_with_cache(ids, names_filter=names)[1]
        ablations, means, unmatched = {}, {}, {}
        if ABLATIONS[kind].reference:
            hooks = [
                f"blocks.{layer}.attn.{stage}.hook_{BRANCHES[branch].hook}"
                for layer in range(bridge.cfg.n_layers)
                for stage in stages_of(bridge)
                for branch in ADDED
            ]
            taps = [*names, *(name for name in hooks if name in bridge.hook_dict)]
            found = replacement(bridge, taps, kind, reference)
            ablations[kind] = found.at(ids, read)
            unmatched[kind] = found.unmatched.share
            means = {name: found.means[name] if found.means else found.pool[name].mean(0) for name in names}
        values = References(ablations=ablations, unmatched=unmatched)
        return cls(bridge, ids, kind, values, {n: cache[n][0] for n in names}, means)

    @cached_property
    def stream(self) -> Stream:
        """The prompt's residual stream, for runs from a layer on."""
        return Stream(self.bridge, self.ids)

    @property
    def starts(self) -> dict[str, Float[Tensor, "1 1 head d_head"]] | None:
        """Where the heads' outputs start from in an attribution, by hook: their mean; None for zero."""
        if not ABLATIONS[self.kind].reference:
            return None
        return {name: mean[None, None] for name, mean in self.means.items()}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind, and zero beside it."""
        return (self.kind,) if self.kind == "zero" else (self.kind, "zero")

    def units(self, unit: Intervention, kind: str) -> list[Intervention]:
        """The parts of one unit that this model has, under a kind; none if it has no such unit."""
        if unit.part == "edge":
            length = self.ids.shape[1]
            query, key = (None if at is None else at % length for at in (unit.query, unit.key))
            found = self.edges.get((unit.layer, unit.stage, unit.head_from, unit.head), ())
            return [replace(one, kind=kind, query=query, key=key) for one in found if unit.name in ("added", one.name)]
        try:
            return checked(self.bridge, replace(unit, kind=kind), self.ids.shape[1])
        except UserError:  # a model without that branch
            return []

    @cached_property
    def edges(self) -> dict[tuple[Any, ...], list[Intervention]]:
        """Every edge of the model but the skip's, by (layer, stage, head_from, head): one unit for each branch.

        To check each edge by itself would take longer than to ablate it.
        """
        found: dict[tuple[Any, ...], list[Intervention]] = {}
        for stage in stages_of(self.bridge):
            for one in all_units(self.bridge, "edge", stage):
                if one.name != "skip":
                    found.setdefault((one.layer, stage, one.head_from, one.head), []).append(one)
        return found

    def effects(self, units: Mapping[Hashable, Sequence[Intervention]], metric: Metric) -> Effects:
        """f(clean) - f(ablated) for groups of units by name, under the kind and under zero; 0 for what is not there.

        Cost: two rows of a forward pass for each group.
        """
        rows = {
            (kind, name): [one for unit in group for one in self.units(unit, kind)]
            for kind in self.kinds
            for name, group in units.items()
        }
        rows = {place: row for place, row in rows.items() if row}
        found: dict[Any, float] = {}
        if rows:
            measured = measure_effects(
                self.bridge, self.ids, list(rows.values()), metric, self.values, batch_size=BATCH
            )
            found = dict(zip(rows, measured.tolist(), strict=True))
        return Effects(self.kind, found)

    def last_outputs(self, kind: str) -> dict[str, Float[Tensor, "head d_head"]]:
        """What takes the place of the heads' outputs at the last position, by hook."""
        if kind == "zero":
            return {name: torch.zeros_like(z[-1]) for name, z in self.z.items()}
        if kind == "rotate":
            return {name: z[-1].roll(1, dims=0) for name, z in self.z.items()}
        new = {name: self.values.ablations[kind][name].to(z) for name, z in self.z.items()}
        return {name: value if value.dim() == 2 else value[-1] for name, value in new.items()}

    def attributions(self, explanation: Explanation) -> Float[Tensor, "layer head pos"]:
        """Integrated gradients of the heads' outputs, as `attribute_heads` has them: from their mean, or from zero."""
        return head_scores(self.bridge, explanation, self.starts).by_position

    def direct(self, metric: Metric, kind: str | None = None) -> Float[Tensor, "layer head"]:
        """The direct effect of every head on the metric.

        A head's output at the last position is ablated while all other heads keep theirs, so that no later head passes
        the change on; what the MLPs make of it is included. (Path patching from the head to the logits.)

        Cost: one forward pass of layers x heads rows.
        """
        put = self.last_outputs(kind or self.kind)
        heads = {(name, h): new[h] for name, new in put.items() for h in range(len(new))}
        return self.patched(metric, heads).view(len(self.z), -1)

    def patched(self, metric: Metric, new: Mapping[tuple[str, Any], Tensor]) -> Float[Tensor, " row"]:
        """f(clean) - f(z) with one head's output at the last position put in, all others held, one row for each.

        Args:
            new: by (hook, head) or (hook, (head, number)).
        """
        effects = []
        places = list(new)
        for start in range(0, len(places), BATCH):
            some = [None, *places[start : start + BATCH]]  # the first row is untouched

            def put(z: Tensor, hook: Any, name: str, some: list[Any] = some) -> Tensor:
                out = self.z[name].expand_as(z).clone()
                for row, place in enumerate(some):
                    if place is not None and place[0] == name:
                        head = place[1][0] if isinstance(place[1], tuple) else place[1]
                        out[row, -1, head] = new[place]
                return out

            lowest = first_layer([name for name, _ in places[start : start + BATCH]])  # below it nothing changes
            with torch.no_grad():
                hooks = [(name, partial(put, name=name)) for name in self.z if first_layer([name]) >= lowest]
                value = metric_of(self.stream, metric, len(some), hooks)
            effects.append(value[0] - value[1:])
        return torch.cat(effects).float().cpu()


@dataclass(frozen=True)
class Effects:
    """Measured effects by (kind, name)."""

    kind: str
    found: Mapping[Any, float] = field(default_factory=dict)

    def of(self, name: Hashable) -> Effect:
        """The effect of one group of units."""
        return Effect(self.found.get((self.kind, name), 0.0), self.found.get(("zero", name), 0.0))


@dataclass(frozen=True)
class Effect:
    """By how much an ablation reduces the logit difference, and by how much zero does."""

    value: float
    at_zero: float


@dataclass(frozen=True)
class SharingEffects:
    """By how much ablating the attention that each other head shares with one head reduces the logit difference.

    here: at the last position and the source token only; everywhere: the whole edge, at all positions; both are
    [head_from], zero for the head itself, and if there is no such edge. most, most_everywhere: of the head that shares
    most; by_branch: as `most`, through one projection. without: of all that composition adds to that entry; layer: of
    all composition of the layer.
    """

    here: Float[Tensor, " head_from"]
    everywhere: Float[Tensor, " head_from"]
    most: Effect
    most_everywhere: Effect
    by_branch: Mapping[str, Effect]
    without: Effect
    layer: Effect


def measure_sharing(
    ablator: Ablator, metric: Metric, layer: int, head: int, key: int, head_from: int
) -> SharingEffects:
    """Ablate what each head shares with `head`, one at a time, then all of it, then all composition of the layer.

    Cost: four rows of a forward pass for every other head, and ten.
    """
    heads = range(ablator.bridge.cfg.n_heads)
    here = Intervention("edge", layer, "post", "added", head, query=-1, key=key)
    units: dict[Any, list[Intervention]] = {}
    for other in heads:
        if other != head:
            units["here", other] = [replace(here, head_from=other)]
            units["everywhere", other] = [replace(here, head_from=other, query=None, key=None)]
    for branch in ("qp", "kp"):
        units["by_branch", branch] = [replace(here, head_from=head_from, name=branch)]
    units["without"] = [replace(here, head_from=other) for other in heads]
    units["layer"] = [Intervention("branch", layer, "post", "added")]
    effects = ablator.effects(units, metric)

    def by_head(which: str) -> Tensor:
        return torch.tensor([effects.of((which, other)).value for other in heads])

    return SharingEffects(
        here=by_head("here"),
        everywhere=by_head("everywhere"),
        most=effects.of(("here", head_from)),
        most_everywhere=effects.of(("everywhere", head_from)),
        by_branch={branch: effects.of(("by_branch", branch)) for branch in ("qp", "kp")},
        without=effects.of("without"),
        layer=effects.of("layer"),
    )


@dataclass(frozen=True)
class StrongestEdge:
    """The edge between two heads whose ablation changes the logit difference most, of both stages and all layers.

    line: the intervention; effect: by how much it reduces the logit difference; measured, edges: how many of how many
    edges were ablated.
    """

    line: str
    effect: float
    at_zero: float
    measured: int
    edges: int


def strongest_edge(ablator: Ablator, metric: Metric) -> StrongestEdge | None:
    """Ablate every edge at all positions (in a large model those with the largest gradient scores), and keep one.

    Cost: a row of a forward pass for each edge, `EXHAUSTIVE` at most; a gradient pass for each layer and stage if there
    are more.
    """
    bridge = ablator.bridge
    edges = [
        Intervention("edge", layer, stage, "added", head, head_from, kind=ablator.kind)
        for layer, stage, head_from, head in ablator.edges
        if head_from != head
    ]
    if not edges:
        return None
    kept = edges if len(edges) <= EXHAUSTIVE else _screened(ablator, metric, edges)
    rows = [ablator.units(edge, ablator.kind) for edge in kept]
    effects = measure_effects(bridge, ablator.ids, rows, metric, ablator.values, batch_size=BATCH)
    best = int(effects.abs().argmax())
    at_zero = measure_effects(bridge, ablator.ids, [ablator.units(kept[best], "zero")], metric)
    return StrongestEdge(str(kept[best]), float(effects[best]), float(at_zero[0]), len(kept), len(edges))


def _screened(ablator: Ablator, metric: Metric, edges: Sequence[Intervention]) -> list[Intervention]:
    """The edges with the largest gradient scores."""
    score: dict[tuple[str, int], Tensor] = {}
    for stage in stages_of(ablator.bridge):
        explainer = EdgeExplainer(ablator.bridge, ablator.ids, stage=stage, method="gradient")
        layers = list(range(ablator.bridge.cfg.n_layers))
        credits, _ = explainer.scores(metric, layers, per_source=False)
        for layer, credit in zip(layers, credits, strict=True):
            score[stage, layer] = credit.by_source[1:].sum((0, -1)).abs()  # all branches but the skip
    ranked = sorted(edges, key=lambda one: -float(score[one.stage, one.layer][one.head_from, one.head]))
    return ranked[:SCREENED]


def measure_logit_difference(bridge: Bridge, ids: TokenIds, metric: Metric) -> float:
    """The metric of a prompt.

    Cost: one forward pass.
    """
    with torch.no_grad():
        return float(metric(bridge(ids))[0])
