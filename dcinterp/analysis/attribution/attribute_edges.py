r"""Which head's attention was shared with which head's values, through which branch, and what it did for the answer.

    z[h,t] = sum over s of P[h,t,s] v[h,s],   P[h,t,s] = sum over branches c and heads f of A[f,t,s] C_c[f,h](t,s)
    score[c,f,h] = sum over t, s of  A[f,t,s] C_c[f,h](t,s) <v[h,s], g[h,t]>

A is the softmax of the layer, C the maps of its post-composition (dcinterp.mechanism.edges), and g the gradient of the
metric at z: at the actual z ("gradient", which is gradient x edge) or averaged along the path from a baseline ("ig").
z is linear in the edges once the dynamic weights and the values of the layer are given, and both come from the
layer's input: so the integrated gradients of all edges of a layer along their joint straight path are exactly these
products. With stage="pre" the edges are q.k scores shared with the softmax of another head; the composed scores take
the place of z, and there are no values. Further rules are in dcinterp.mechanism.edge_rules.

By default ("screened") the strongest edges by three of these rules are removed, each alone, and score what that does;
the others score what the rule "recomputed" predicts. "ablation" removes every edge.

Source: integrated gradients (Sundararajan et al. 2017) on the terms of the DCMHA paper's Compose. Proofs, and how well
each rule predicts a removal, are in docs/analyses/edges.md.

It does not show what made the dynamic weights what they are (control flow upstream), nor whether two edges can replace
each other. A predicted score is not an intervention: by the methods that only predict, the strongest edges are ablated
too, and a warning says where the two disagree, in sign or by more than a factor of three
(see dcinterp.mechanism.magnitude_check).
With "ig", scores of different layers overlap unless path="joint"; scores of the two stages explain different paths and
never add.

Identities that the tests assert: measured scores are effects of interventions; with "ig" the edges into a head add up
to its head attribution (stage "post"), those of a layer and `gap` to f(x) - f(b) in both stages; gradient x edge equals
finite differences; zero weights have zero edges.

    edges = dcinterp.attribute_edges(model, prompt, "elephant", "sweater")
    edges.top(5)                              # the strongest edges between different heads
    edges.scores[1, 2, 3, 5]                  # layer 1, branch kp, L1H3 -> L1H5: attention of head 3, values of head 5
    dcinterp.figures.plot(edges)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.branches import NAMES, PREVIOUS_LAYER
from dcinterp.mechanism.edge_scores import MEASURING, EdgeExplainer, EdgeMethod, check_edge_choices, place
from dcinterp.mechanism.intervention_hooks import DynamicWeights, freezes, frozen_hooks, measure_effects, references
from dcinterp.mechanism.interventions import Intervention
from dcinterp.mechanism.magnitude_check import magnitude_warnings
from dcinterp.mechanism.objective import UNITS, Objective, explain, other_answer
from dcinterp.mechanism.path_gradient import Integration, Metric, Path, remedy, share_missed
from dcinterp.mechanism.prompt import Prompt, Token, layer_number, require_stage, str_tokens
from dcinterp.mechanism.rounding import notable
from dcinterp.mechanism.statistics import sign_test
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result
from dcinterp.support.arguments import require_fitting
from dcinterp.support.errors import UserError
from dcinterp.support.former_names import warn_of
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count, Number, Tolerance

NOTABLE_GAP = 0.05
# Edges below this share of the largest are zero but for rounding.
ROUNDING = 1e-6

Stage = Literal["pre", "post"]


class BeyondScore(NamedTuple):
    """What one head takes from another's scores of other pairs of tokens, or of the previous layer.

    layer, head_from: of the head that scored; layer_to, head_to: of the one that uses it. term: which scores, as in
    "query -1, key +2" (one query back, two keys ahead).
    """

    layer: int
    head_from: int
    layer_to: int
    head_to: int
    term: str
    score: float

    @property
    def label(self) -> str:
        """How tables name it: L0H6 → L1H1 (previous layer)."""
        return f"L{self.layer}H{self.head_from} → L{self.layer_to}H{self.head_to} ({self.term})"


class EdgeScore(NamedTuple):
    """One edge and its score; `intervene` takes it as its removal, whose line is `str(edge.intervention)`."""

    layer: int
    branch: str
    head_from: int
    head_to: int
    score: float
    stage: str = "post"

    @property
    def shared(self) -> bool:
        """Whether the attention is another head's."""
        return self.head_from != self.head_to

    @property
    def lent(self) -> bool:
        """The former name of `shared`."""
        warn_of("lent", "shared")
        return self.shared

    @property
    def label(self) -> str:
        """How figures name the edge: L1H6 → L1H1 (kp), head 6 of layer 1 shares with head 1 through branch kp.

        Before the softmax it is (pre kp).
        """
        branch = self.branch if self.stage == "post" else f"{self.stage} {self.branch}"
        return f"L{self.layer}H{self.head_from} → L{self.layer}H{self.head_to} ({branch})"

    @property
    def intervention(self) -> Intervention:
        """The removal of this edge."""
        return Intervention("edge", self.layer, self.stage, self.branch, self.head_to, self.head_from)

    def plain(self) -> str:
        """The line of the removal, which is how records of calls keep an edge."""
        return str(self.intervention)


@dataclass(frozen=True)
class EdgeAttribution(Result):
    """Scores of all edges of the chosen layers, in units of the metric (logits).

    scores [layer, branch, head_from, head_to]; by_source has them by source token s too (one entry, the sum, unless
    they were asked for); heads [layer, head_to]: what the edges into a head must add up to (by rules without such an
    identity their sum); mismatch [layer]: by how much they do not. gap, metric_at_baseline, steps [path]: of each
    integral, one a layer or one for all (path "joint").
    predicted and measured [checked]: what the rule says of the edges named in `checked`, and the effect of removing
    each (for `intervene`, which takes the mean where a line names no kind: the name with " zero" behind it). By the
    methods "screened" and "ablation" scores are the effects where these were measured; by_source, heads and mismatch
    are the rule's.
    position: of the token that is explained; of several, the first. tolerance: of a gap, before a warning; None in what
    earlier versions saved, of which 5 % are reported.
    beyond [layer, head_from, head_to, term]: in stage "pre" of multi-token attention and of dense collaboration, what a
    head takes from scores of other pairs of tokens, or of the previous layer's heads, by the rule and never measured;
    it belongs to the sum that `heads` is. None for other models. See `top_beyond`.
    rounding: of the model's numbers, as a share of one (2^-23 in float32); right: the model gives the target, token by
    token. None in what earlier versions saved.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "scores": ("layer", "branch", "head_from", "head_to"),
        "by_source": ("layer", "branch", "head_from", "head_to", "source"),
        "heads": ("layer", "head_to"),
        "mismatch": ("layer",),
        "gap": ("path",),
        "metric_at_baseline": ("path",),
        "steps": ("path",),
        "predicted": ("edge",),
        "measured": ("edge",),
        "beyond": ("layer", "head_from", "head_to", "term"),
    }

    tokens: tuple[str, ...]
    position: int
    target: str
    foil: str
    answer: str
    objective: str
    stage: str
    method: str
    path: str
    dynamic_weights: str
    layers: tuple[int, ...]
    sources: tuple[str, ...]
    checked: tuple[str, ...]
    metric: float
    scores: Float[Tensor, "layer branch head_from head_to"]
    by_source: Float[Tensor, "layer branch head_from head_to source"]
    heads: Float[Tensor, "layer head_to"]
    mismatch: Float[Tensor, " layer"]
    gap: Float[Tensor, " path"]
    metric_at_baseline: Float[Tensor, " path"]
    steps: Tensor
    predicted: Float[Tensor, " edge"]
    measured: Float[Tensor, " edge"]
    terms: tuple[str, ...] = ()
    beyond: Float[Tensor, "layer head_from head_to term"] | None = None
    rounding: float | None = None
    right: bool | None = None
    tolerance: float | None = None

    @property
    def relative_gap(self) -> Float[Tensor, " path"]:
        """|gap| as a share of the metric difference |f(x) - f(b)| of the path."""
        return self.gap.abs() / (self.metric - self.metric_at_baseline).abs().clamp(min=1e-9)

    def top(self, k: int = 10, *, shared: bool = True, head_to: tuple[int, int] | None = None) -> list[EdgeScore]:
        """The `k` edges of largest |score|, strongest first; edges that do nothing are not named.

        Args:
            shared: only edges between different heads: without the skip, gates and whatever else scales a head's own
                attention.
            head_to: (layer, head): only edges into this head; negative ones count from the last one scored.

        Raises:
            UserError: `k` is no whole number of at least 0, there is no such head, or its layer was not scored.
        """
        require_fitting("k", k, Number)
        chosen = self.scores.abs().clone()
        if shared:
            chosen.diagonal(dim1=-2, dim2=-1).fill_(-1)
        if head_to is not None:
            keep = torch.zeros_like(chosen, dtype=torch.bool)
            keep[*self._place_of(head_to)] = True
            chosen[~keep] = -1
        order = chosen.flatten().argsort(descending=True, stable=True)[:k]
        places = zip(*(axis.tolist() for axis in torch.unravel_index(order, chosen.shape)), strict=True)
        return [
            EdgeScore(self.layers[i], NAMES[b], f, h, float(self.scores[i, b, f, h]), self.stage)
            for i, b, f, h in places
            if chosen[i, b, f, h] > ROUNDING * self.scores.abs().max()
        ]

    def _place_of(self, head: tuple[int, int]) -> tuple[int, slice, slice, int]:
        """Where the edges into a head stand among the scores."""
        try:
            layer, number = map(operator.index, head)
        except (TypeError, ValueError):
            raise UserError(f"head_to is {head!r}; give (layer, head), as in (1, 6).") from None
        layer = layer if layer >= 0 else layer + self.layers[-1] + 1
        if layer not in self.layers:
            raise UserError(f"Layer {head[0]} was not scored; choose from {', '.join(map(str, self.layers))}.")
        heads = self.scores.shape[-1]
        if not -heads <= number < heads:
            raise UserError(f"There is no head {number}; this model has heads 0..{heads - 1}.")
        return self.layers.index(layer), slice(None), slice(None), number

    def top_beyond(self, k: int = 10) -> list[BeyondScore]:
        """The `k` largest |beyond|, strongest first; none where a pair's own attention is all that it takes.

        Raises:
            UserError: `k` is no whole number of at least 0.
        """
        require_fitting("k", k, Number)
        if self.beyond is None:
            return []
        sizes = self.beyond.abs()
        order = sizes.flatten().argsort(descending=True, stable=True)[:k]
        places = zip(*(axis.tolist() for axis in torch.unravel_index(order, sizes.shape)), strict=True)
        return [
            BeyondScore(
                self.layers[i] - (self.terms[n] == PREVIOUS_LAYER),
                f,
                self.layers[i],
                h,
                self.terms[n],
                float(self.beyond[i, f, h, n]),
            )
            for i, f, h, n in places
            if sizes[i, f, h, n] > ROUNDING * max(sizes.max(), self.scores.abs().max())
        ]

    def strongest(self, k: int = 10, *, shared: bool = True) -> list[EdgeScore | BeyondScore]:
        """The `k` largest of `top` and `top_beyond` together; where no head shares its attention, of all edges."""
        edges = self.top(k, shared=shared) or self.top(k, shared=False)
        found: list[EdgeScore | BeyondScore] = [*edges, *self.top_beyond(k)]
        return sorted(found, key=lambda edge: -abs(edge.score))[:k]

    @cached_property
    def _measured(self) -> dict[str, float]:
        """Effects by the unit that was ablated."""
        return dict(zip(self.checked, self.measured.tolist(), strict=True))

    def measured_of(self, edge: EdgeScore | BeyondScore) -> float | None:
        """The effect of ablating an edge, or where nothing is composed its head, if it was measured."""
        if isinstance(edge, BeyondScore):
            return None
        return self._measured.get(edge.intervention.unit, self._measured.get(f"head {edge.layer}.{edge.head_to}"))

    def table(self) -> pd.DataFrame:
        """One row per edge that composition adds (or head, where nothing is composed), the strongest first.

        What is taken from other pairs or from the previous layer (`top_beyond`) has a row too.

        shared: the attention is another head's; the others scale a head's own. ablation: if it was measured.
        """
        every = self.top(self.scores.numel(), shared=False)
        edges = [edge for edge in every if edge.shared or edge.branch != "skip"] or every
        rows: list[dict[str, Any]] = [
            {
                "edge": edge.intervention.unit,
                "shared": edge.shared,
                "score": edge.score,
                "ablation": self.measured_of(edge),
            }
            for edge in edges
        ]
        rows += [
            {"edge": one.label, "shared": True, "score": one.score, "ablation": None}
            for one in self.top_beyond(0 if self.beyond is None else self.beyond.numel())
        ]
        if self.beyond is not None:
            rows.sort(key=lambda row: -abs(row["score"]))
        return pd.DataFrame(rows, columns=["edge", "shared", "score", "ablation"])

    def labels(self, axis: str) -> list[Any] | None:
        names: dict[str, list[Any]] = {
            "layer": list(self.layers),
            "branch": list(NAMES),
            "source": list(self.sources),
            "edge": list(self.checked),
            "term": list(self.terms),
        }
        return names.get(axis)

    def warnings(self) -> list[str]:
        sentences = []
        if said := other_answer(self.answer, self.target, self.right):
            sentences.append(f"The model {said}: the scores explain a logit that is not the largest.")
        scale = float(self.heads.abs().max()) if self.heads.numel() else 0.0
        if float(self.mismatch.max()) > notable(self.rounding or 0.0) * max(scale, 1e-6):
            sentences.append(
                f"The edges do not add up to the scores of their heads (difference {float(self.mismatch.max()):.2g}): "
                "a hook changed the composition, or the model has a branch that is not known here."
            )
        worst = float(share_missed(self.gap, self.metric - self.metric_at_baseline).max())
        allowed = NOTABLE_GAP if self.tolerance is None else self.tolerance
        if self.method in ("ig", "ig-counterfactual") and worst > allowed:
            sentences.append(f"The integral misses {worst:.0%} of the metric difference: {remedy(self.method)}")
        if self.method in MEASURING and not self.checked:
            sentences.append("No edge was measured: every score is what the gradient predicts.")
        if self.method in MEASURING:  # the scores of these edges are their effects
            return sentences
        wrong = [
            name
            for name, p, m in zip(self.checked, self.predicted.tolist(), self.measured.tolist(), strict=True)
            if p * m < 0
        ]
        if wrong:
            agreement = sign_test(self.predicted, self.measured)
            sentences.append(
                f"Attribution and ablation disagree in sign for {len(wrong)} of the {agreement.n} strongest edges "
                f"({', '.join(wrong[:3])}{', ...' if len(wrong) > 3 else ''}): trust the ablation."
            )
        unit = UNITS[self.objective]
        way = self.path if self.path == "joint" else self.method
        return sentences + magnitude_warnings(self.checked, self.predicted, self.measured, method=way, unit=unit)


@analysis(
    title="Edge attribution",
    ignore=("batch_size",),
    question="Which head's attention was shared with which head's values, and did it matter?",
    guide="analyses/edges.md",
    example={"prompt": EXAMPLE_PROMPT, "target": "tea", "foil": "meat"},
)
def attribute_edges(
    bridge: Bridge,
    prompt: Prompt,
    target: Token,
    foil: Token | None = None,
    *,
    at: int = -1,
    objective: Objective = "logit",
    stage: Stage = "post",
    method: EdgeMethod = "screened",
    path: Path = "layer",
    baseline: Prompt | None = None,
    dynamic_weights: DynamicWeights = "recomputed",
    layers: Sequence[int] | None = None,
    per_source: bool = True,
    check: Number = 8,
    steps: Count = 32,
    max_steps: Count = 512,
    tolerance: Tolerance = 0.01,
    batch_size: Count = 64,
    progress: Progress = silent,
) -> EdgeAttribution:
    """Attribute the logit of `target` (minus that of `foil`, if given) to every edge of composition.

    Args:
        bridge: any bridge; where heads are not composed, every head has the one edge to itself (stage "post").
        prompt: text, or token ids as in [5, 7, 9].
        target: the answer; of one that takes several tokens, all are explained (see dcinterp.mechanism.objective).
        foil: the answer it competes with.
        at: the position whose next token is explained.
        objective: "logit" (with a foil, the difference) or "log-probability".
        stage: "post" for attention weights shared with values, "pre" for scores shared with another head's softmax.
        method: "screened" measures the strongest edges and predicts the others, "ablation" measures all; or a rule:
            "ig" averages the gradient along the path, "ig-counterfactual" along one from the baseline, "gradient" takes
            it at the actual activations, "halfway" with the layer at half its size, "recomputed" computes the softmax
            anew, "relp" makes the model linear.
        path: "layer" moves one layer at a time, whose scores add up to that layer's whole effect; "joint" moves all
            layers together, so that the scores of all layers add up to one difference.
        baseline: a counterfactual prompt with as many tokens, whose edges the path starts from; nothing (z = 0, or
            equal scores for all keys) by default.
        dynamic_weights: "recomputed" lets later compositions respond to the change; "frozen" keeps their weights.
        layers: the layers to score, negative ones counted from the last; all by default.
        per_source: keep the scores by source token.
        check: how many of the strongest edges between different heads to ablate (with a baseline, to set to what they
            are in that prompt; the scores then also include the change of the values). Method "screened" takes as
            many, and twice as many of single heads, from each of three rankings, and with a baseline sets an edge
            with its values.
        steps, max_steps, tolerance: Gauss-Legendre points to start with (half as many in models of more than 12
            layers); points are added up to `max_steps` until the gap is below `tolerance` of the layer's metric
            difference, or of a tenth of the largest layer's where that is more.
        batch_size: rows of one forward and backward pass; bounds the memory.
        progress: called with what the work takes before it begins, and after each layer.

    Cost: some passes forward and three backward, of a row or of one a layer, and a row for every measured edge from its
    layer on (at most 9 `check`; "ablation": every edge). With "ig": per layer (3 + steps) rows through the layers from
    it on, all but one backward too, and rank + 2 products as large as composing; `check` + 1 rows at the end.
    Memory: the pre stage keeps a gradient [head, query, key] per row of the batch; by_source has
    layers * 5 * heads^2 * pos numbers.

    Raises:
        UserError: prompt, target, foil, position or layer do not fit the model, the baseline has another length, or the
            model does not compose its heads at that stage.
    """
    check_edge_choices(path, method)
    if stages_of(bridge) or stage == "pre":
        require_stage(bridge, stage)
    explanation = explain(bridge, prompt, target, foil, at=at, objective=objective)
    ids = explanation.ids
    other = None if baseline is None else explanation.baseline(bridge, baseline)
    if layers is not None and not len(layers):
        raise UserError("There are no layers to score; name at least one, or leave them out for all.")
    chosen = range(bridge.cfg.n_layers) if layers is None else sorted({layer_number(bridge, each) for each in layers})
    frozen = frozen_hooks(bridge, ids) if freezes(dynamic_weights) else ()
    integration = Integration(steps, max_steps, tolerance, batch_size)
    explainer = EdgeExplainer(bridge, ids, other, stage, method, frozen, integration)

    credits, integrals = explainer.scores(explanation.metric, list(chosen), path, per_source, progress)
    by_source = torch.stack([each.by_source for each in credits])
    heads = torch.stack([each.heads for each in credits])
    added = by_source.sum(-1)
    terms = max((each.terms for each in credits), key=len)
    beyond = torch.stack([_filled(each.beyond, len(terms)) for each in credits])
    scores, effects = added, torch.zeros(0)
    edges: list[Intervention] = []
    if method in MEASURING:
        scores, edges, effects = explainer.with_measured(explanation.metric, list(chosen), added, check)
    named = edges if stages_of(bridge) else [Intervention("head", e.layer, head=e.head) for e in edges]
    with torch.no_grad():
        logits = bridge(ids)
    result = EdgeAttribution(
        tokens=str_tokens(bridge, ids),
        position=explanation.positions[0],
        target=explanation.target,
        foil=explanation.foil,
        answer=explanation.answer(bridge, logits),
        right=explanation.is_right(logits),
        objective=objective,
        stage=stage,
        method=method,
        path=path,
        dynamic_weights=dynamic_weights,
        tolerance=tolerance,
        layers=tuple(chosen),
        sources=str_tokens(bridge, ids) if per_source else ("all tokens",),
        checked=tuple(one.unit for one in named),
        metric=integrals[0].actual,
        scores=scores,
        by_source=by_source,
        heads=heads,
        mismatch=(added.sum((1, 2)) + beyond.sum((1, 3)) - heads).abs().amax(1),
        gap=torch.tensor([each.gap for each in integrals]),
        metric_at_baseline=torch.tensor([each.at_baseline for each in integrals]),
        steps=torch.tensor([each.steps for each in integrals]),
        predicted=torch.tensor([float(added[place(edge, chosen)]) for edge in edges]),
        measured=effects.float(),
        terms=terms,
        beyond=beyond if terms else None,
        rounding=torch.finfo(next(p.dtype for p in bridge.original_model.parameters() if p.is_floating_point())).eps,
    )
    return result if method in MEASURING else _checked(result, explainer, explanation.metric, check)


def _filled(beyond: Tensor, terms: int) -> Tensor:
    """With zeros where a layer has none of the terms that others have (the first one, which has none before it)."""
    return beyond if beyond.shape[-1] == terms else beyond.new_zeros(*beyond.shape[:2], terms)


def _checked(result: EdgeAttribution, explainer: EdgeExplainer, metric: Metric, check: int) -> EdgeAttribution:
    """The result with the strongest edges ablated: set to zero, or to what they are in the baseline prompt."""
    bridge, ids = explainer.bridge, explainer.ids
    composed = result.stage in stages_of(bridge)
    edges = (result.top(check) if composed else []) or result.top(check, shared=False)
    if not edges:
        return result
    # Without composition, a head's only edge is all that it reads.
    interventions = [e.intervention if composed else Intervention("head", e.layer, head=e.head_to) for e in edges]
    from_baseline = explainer.baseline is not None and result.method != "ig-counterfactual"  # predicts whole removals
    if from_baseline:
        interventions = [replace(one, kind="counterfactual") for one in interventions]
    if from_baseline and composed:
        effects = explainer.measure(metric, interventions)  # with the values of that prompt, as the scores have them
    else:
        effects = measure_effects(
            bridge,
            ids,
            [[one] for one in interventions],
            metric,
            references(bridge, interventions, ids.shape[1], explainer.baseline),
            frozen=explainer.frozen,
            batch_size=explainer.integration.batch_size,
        )
    return replace(
        result,
        checked=tuple(one.unit for one in interventions),
        predicted=torch.tensor([edge.score for edge in edges]),
        measured=effects.float().cpu(),
    )
