r"""How much the composition of every layer matters for an answer: integrated gradients on what each Compose adds.

    g(a) = f of the model with m + a[l, stage, branch, head] (o - m) in place of its branches o_qp, o_kp, o_qg, o_kg
    score[l, stage, branch, head] = integral_0^1 dg/da[l, stage, branch, head] at knobs (u, ..., u) du

so the path leads from the layer with its dynamic composition ablated to the layer as it is. m is the branch with its
map over heads replaced by the mean over the examples (kind "mean"), or zero: only the skip and the static map then
stay. What the ablation does is measured for both. path="layer" turns the knobs of one stage of one layer, and later
layers are computed from what arrives; there the score is <o - m, average gradient of f at hook_out>. path="joint" turns
all knobs of the model at once. Source: the
DCMHA paper's appendix on interpretation attributes to the composition of each layer by integrated gradients and reports
that lower layers matter more; it does not give the path.

It does not show that a model trained without composition would be worse: the rest of this model expects it.

Identity that the tests assert: the scores of a path add up to f(model) - f(model whose added branches on the path are
ablated by hooks), up to the gap.

    importance = dcinterp.composition_importance(model, "different-in-set n=20")
    importance.by_layer          # [layer, stage], mean over examples
    dcinterp.figures.plot(importance)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.ablation import replacement
from dcinterp.mechanism.branches import ADDED as ADDED_BRANCHES
from dcinterp.mechanism.branches import BRANCHES
from dcinterp.mechanism.dataset import Examples, read_questions, repeats
from dcinterp.mechanism.memory import check_fits
from dcinterp.mechanism.objective import Explanation, Objective, explain, mixed_metrics
from dcinterp.mechanism.path_gradient import Integration, Method, Path, integrate, missed, remedy
from dcinterp.mechanism.statistics import bootstrap_interval, few_examples
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, all_once, silent
from dcinterp.support.ranges import Count, Level, Tolerance

ADDED = tuple(BRANCHES[branch].hook for branch in ADDED_BRANCHES)

Place = tuple[int, str]
"""(layer, stage)."""


@dataclass(frozen=True)
class CompositionImportance(Result):
    """Scores of the composition of every layer, in units of the metric.

    scores [example, layer, stage, branch, head_to], a branch that the model lacks being zero; by_layer, low, high
    [layer, stage]: mean over examples of what a stage adds, with its interval; size [layer, stage]: mean of
    its size |.|, since helping here and hurting there would cancel; gap, metric_difference [example, layer, stage],
    the difference f(with) - f(without) being measured (on the joint path all entries of an example repeat one number);
    right [example]: the model gives the target. kind: of ablation that the path begins at; at_zero: mean over examples
    of the metric difference to all branches of a stage at zero, for each layer and stage, where that is not the kind.
    distinct: how many sets of facts they hold (None: not known, of an earlier version).
    """

    PROSE: ClassVar[tuple[str, ...]] = ("prompts",)  # with the answer behind them in earlier versions
    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "scores": ("example", "layer", "stage", "branch", "head_to"),
        "by_layer": ("layer", "stage"),
        "low": ("layer", "stage"),
        "high": ("layer", "stage"),
        "size": ("layer", "stage"),
        "gap": ("example", "layer", "stage"),
        "metric_difference": ("example", "layer", "stage"),
        "right": ("example",),
    }

    n: int
    stages: tuple[str, ...]
    level: float
    objective: str
    path: str
    method: str
    tolerance: float
    prompts: tuple[str, ...]
    targets: tuple[str, ...]
    foils: tuple[str, ...]
    scores: Float[Tensor, "example layer stage branch head_to"]
    by_layer: Float[Tensor, "layer stage"]
    low: Float[Tensor, "layer stage"]
    high: Float[Tensor, "layer stage"]
    size: Float[Tensor, "layer stage"]
    gap: Float[Tensor, "example layer stage"]
    metric_difference: Float[Tensor, "example layer stage"]
    right: Bool[Tensor, " example"]
    kind: str = "zero"
    at_zero: tuple[tuple[float, ...], ...] | None = None
    distinct: int | None = None

    @property
    def by_branch(self) -> Float[Tensor, "layer stage branch"]:
        """Mean over examples of what every branch adds, summed over heads."""
        return self.scores.sum(-1).mean(0)

    def labels(self, axis: str) -> list[str] | None:
        return {"stage": list(self.stages), "branch": list(ADDED), "example": list(self.prompts)}.get(axis)

    def warnings(self) -> list[str]:
        said = []
        if wrong := int((~self.right).sum()):
            said.append(f"The model's answer is wrong in {wrong} of {self.n} examples.")
        gaps = missed(self.gap, self.metric_difference, self.tolerance)
        if gaps.any():
            said.append(
                f"The scores of {int(gaps.sum())} of {self.n} examples miss more than "
                f"{self.tolerance:.0%} of the metric difference somewhere: {remedy(self.method)}"
            )
        said += mixed_metrics(self.foils)
        said += few_examples(self.n, self.low, self.distinct)
        return said

    def table(self) -> pd.DataFrame:
        """One row a stage of a layer, and what each branch adds."""
        rows = []
        for layer in range(self.by_layer.shape[0]):
            for place, stage in enumerate(self.stages):
                row: dict[str, Any] = {"layer": layer, "stage": stage}
                row |= {name: float(getattr(self, name)[layer, place]) for name in ("by_layer", "low", "high", "size")}
                row["ablated"] = float(self.metric_difference[:, layer, place].mean())
                if self.at_zero is not None:
                    row["ablated_by_zero"] = self.at_zero[layer][place]
                row |= dict(zip(ADDED, self.by_branch[layer, place].tolist(), strict=True))
                rows.append(row)
        return pd.DataFrame(rows)


@analysis(
    title="Composition importance by layer",
    needs_composition=True,
    before={"kind": "zero"},
    question="How much does the composition of each layer matter?",
    guide="analyses/composition-importance.md",
    in_units=True,
    example={"examples": "same-person n=2", "method": "gradient"},
)
def composition_importance(
    bridge: Bridge,
    examples: Examples,
    *,
    objective: Objective = "logit",
    method: Method = "ig",
    path: Path = "layer",
    kind: Literal["mean", "zero"] = "mean",
    level: Level = 0.95,
    seed: int = 0,
    steps: Count = 8,
    max_steps: Count = 256,
    tolerance: Tolerance = 0.01,
    batch_size: Count = 32,
    progress: Progress = silent,
) -> CompositionImportance:
    """Attribute answers to what the composition of every layer adds, before and after softmax.

    Args:
        bridge: a bridge over a DCFormer.
        examples: a text such as "same-person n=20 seed=1", or a list of examples of the tasks or of (prompt, target,
            foil); see dcinterp.mechanism.dataset. One prompt is a list of one.
        objective: "logit" (difference from the foil where there is one) or "log-probability".
        method: "ig", or "gradient" at the model as it is.
        path: "layer" for each stage of each layer by itself, or "joint".
        kind: what the composition is compared with: "mean", its mean map over these examples, or "zero".
        level: confidence level of the intervals over examples.
        seed: seed of the bootstrap.
        steps, max_steps, tolerance: Gauss-Legendre points to start with, doubled up to `max_steps` until the gap is
            below `tolerance` of the metric difference.
        batch_size: rows of one forward and backward pass; bounds the memory.
        progress: called after each example.

    Cost: per example and stage of a layer (once, "joint"), steps + 2 rows forward and backward. Memory: a row keeps the
    matrices of one stage for the backward pass (of all stages, "joint").

    Raises:
        UserError: the model does not compose its heads from the tokens, there are no examples, one does not fit, or a
            choice is unknown.
    """
    for stage in stages_of(bridge):
        if not any(f"blocks.0.attn.{stage}.hook_{tap}" in bridge.hook_dict for tap in ADDED):
            raise UserError(
                f"The {stage} composition of this model has no branch that is made from the tokens, which is what this "
                "compares; dcinterp.attribute_edges takes its map apart."
            )
    asked, rule = read_questions(bridge, examples), Integration(steps, max_steps, tolerance, batch_size)
    what = [explain(bridge, q.prompt, q.target, q.foil, objective=objective) for q in asked]
    longest = max(each.ids.shape[1] for each in what)
    layers = bridge.cfg.n_layers * len(stages_of(bridge)) if path == "joint" else 1
    check_fits(bridge, longest, what="Integrating over compositions", rows=min(batch_size, steps), stages=layers)
    means = _mean_maps(bridge, [each.ids for each in what]) if kind == "mean" else {}
    score = partial(_importance, bridge, path=path, method=method, rule=rule, means=means)
    made = all_once(progress, [(f"example {n + 1}", partial(score, each)) for n, each in enumerate(what)])
    scores, gap, difference = (torch.stack(parts) for parts in list(zip(*made, strict=True))[:3])
    at_zero = torch.stack([row[4] for row in made]).mean(0) if means else None
    total, groups = scores.sum((-1, -2)), repeats(bridge, asked)
    low, high = bootstrap_interval(total, level=level, seed=seed, groups=groups)
    return CompositionImportance(
        n=len(what),
        stages=tuple(stages_of(bridge)),
        level=level,
        objective=objective,
        path=path,
        method=method,
        tolerance=tolerance,
        prompts=tuple(each.prompt_text(bridge) for each in what),
        targets=tuple(each.target for each in what),
        foils=tuple(each.foil for each in what),
        scores=scores,
        by_layer=total.mean(0),
        low=low.float(),
        high=high.float(),
        size=total.abs().mean(0),
        gap=gap,
        metric_difference=difference,
        right=torch.tensor([row[3] for row in made]),
        kind=kind,
        at_zero=None if at_zero is None else tuple(map(tuple, at_zero.tolist())),
        distinct=len(set(groups)),
    )


def _mean_maps(bridge: Bridge, examples: list[Tensor]) -> dict[str, Tensor]:
    """The mean map of every added branch over all positions of the examples, by its hook."""
    taps = [
        name
        for layer in range(bridge.cfg.n_layers)
        for stage in stages_of(bridge)
        for tap in ADDED
        if (name := f"blocks.{layer}.attn.{stage}.hook_{tap}") in bridge.hook_dict
    ]
    return dict(replacement(bridge, taps, "mean", examples).means)


def _importance(
    bridge: Bridge, what: Explanation, path: Path, method: Method, rule: Integration, means: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor, bool, Tensor]:
    """(scores [layer, stage, branch, head], gap and metric difference [layer, stage], whether the answer is right,
    metric difference to zero [layer, stage]).
    """
    layers, stages = range(bridge.cfg.n_layers), stages_of(bridge)
    places = [(layer, stage) for layer in layers for stage in stages]
    groups = [places] if path == "joint" else [[place] for place in places]
    scores = torch.zeros(len(layers), len(stages), len(ADDED), bridge.cfg.n_heads)
    gap, difference, to_zero = torch.zeros(3, len(layers), len(stages))
    for group in groups:
        found, with_added, without = _integrate(bridge, what, group, method, rule, means)
        zero = _at_zero(bridge, what, group) if means else without
        for each, (layer, stage) in zip(found, group, strict=True):
            column = stages.index(stage)
            scores[layer, column] = each
            difference[layer, column] = with_added - without
            to_zero[layer, column] = with_added - zero
            gap[layer, column] = with_added - without - float(found.sum())
    with torch.no_grad():
        logits = bridge(what.ids)
    right = logits[0, list(what.positions)].argmax(-1).tolist() == list(what.expected)
    return scores, gap, difference, right, to_zero


def _at_zero(bridge: Bridge, what: Explanation, group: list[Place]) -> float:
    """f with every added branch of these places at zero."""
    hooks = [
        (name, lambda branch, hook: torch.zeros_like(branch))
        for layer, stage in group
        for tap in ADDED
        if (name := f"blocks.{layer}.attn.{stage}.hook_{tap}") in bridge.hook_dict
    ]
    with torch.no_grad():
        return float(what.metric(bridge.run_with_hooks(what.ids, fwd_hooks=hooks))[0])


def _integrate(
    bridge: Bridge,
    what: Explanation,
    group: list[Place],
    method: Method,
    rule: Integration,
    means: Mapping[str, Tensor],
) -> tuple[Float[Tensor, "place branch head"], float, float]:
    """(scores of the places on one path, f with all knobs at 1, f with all at 0)."""
    knobbed = [
        (name, place, branch)
        for place, (layer, stage) in enumerate(group)
        for branch, tap in enumerate(ADDED)
        if (name := f"blocks.{layer}.attn.{stage}.hook_{tap}") in bridge.hook_dict
    ]

    seen: dict[str, Tensor] = {}
    inputs = [
        (f"blocks.{layer}.attn.{stage}.hook_in", lambda a, hook: seen.update({hook.name: a})) for layer, stage in group
    ]

    def run(points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        values = []
        total = torch.zeros(len(group), len(ADDED), bridge.cfg.n_heads, dtype=torch.float64)
        for some, weight in zip(points.split(rule.batch_size), weights.split(rule.batch_size), strict=True):
            knobs = some.to(what.ids.device)[:, None, None, None].repeat(1, *total.shape).requires_grad_()

            def scaled(branch: Tensor, hook: Any, knobs: Tensor = knobs) -> Tensor:
                _, place, number = next(each for each in knobbed if each[0] == hook.name)
                knob = knobs[:, place, number, :, None, None].to(branch)
                if not means:
                    return branch * knob
                attention = seen[f"{hook.name.rpartition('.')[0]}.hook_in"]
                mean = torch.einsum("bfts,fh->bhts", attention, means[hook.name].to(branch))
                return mean + knob * (branch - mean)

            hooks = [*inputs, *((name, scaled) for name, _, _ in knobbed)]
            with torch.enable_grad():
                rows = what.ids.expand(len(some), -1)
                value = what.metric(bridge.run_with_hooks(rows, fwd_hooks=hooks))
                (gradient,) = torch.autograd.grad(value.sum(), knobs, allow_unused=True)
            values.append(value.detach().cpu().double())
            if gradient is not None:
                total += torch.einsum("p,p...->...", weight, gradient.cpu())
        return torch.cat(values), total

    one = torch.ones(1, dtype=torch.float64)
    (with_added,), at_end = run(one, one)
    (without,), _ = run(0 * one, one)
    scores, difference = at_end, float(with_added - without)
    if method == "ig":
        scores, _, _ = integrate(
            lambda points, weights: run(points, weights)[1],
            lambda scores: difference - float(scores.sum()),
            difference,
            rule,
        )
    return scores.float(), float(with_added), float(without)
