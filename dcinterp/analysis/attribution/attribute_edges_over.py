r"""Edge attribution averaged over a set of questions, with intervals, a control and ablations of the strongest edges.

    mean[l, c, f, h] = mean over examples of score[l, c, f, h];     low, high: its interval over examples

score is that of `attribute_edges`, each example against its own foil, each path from zero.

The control shows which scores mean something. "labels": every example is scored once more on the target and foil of
another one, never on its own (see dcinterp.mechanism.label_permutation); [control_low, control_high] is the interval of
that mean: an edge with a similar score contributes to any answer. "heads": within every example, layer and branch the
edges change places at random; the interval holds the middle 95 % of the largest mean of a branch (in size, with its
sign), which is what its best edge must beat.

Source: that of `attribute_edges`; the controls are ours.

It does not show that the examples are alike (`per_example` has them all), nor that an edge is needed: see
`ablation`, the measured effect of removing each of the strongest edges, one at a time.

Identity that the tests assert: for one example it is `attribute_edges`; the ablation is that of `attribute_edges`.

    edges = dcinterp.attribute_edges_over(model, "different-in-set n=20")
    edges.table().head()
    dcinterp.figures.plot(edges)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.branches import NAMES
from dcinterp.mechanism.dataset import Examples, Question, read_questions, repeats
from dcinterp.mechanism.edge_scores import MEASURING, EdgeExplainer, EdgeMethod, check_edge_choices
from dcinterp.mechanism.intervention_hooks import DynamicWeights, freezes, frozen_hooks
from dcinterp.mechanism.interventions import Intervention
from dcinterp.mechanism.label_permutation import label_warnings, score_examples
from dcinterp.mechanism.magnitude_check import magnitude_warnings
from dcinterp.mechanism.objective import UNITS, Explanation, Objective, explain, mixed_metrics
from dcinterp.mechanism.path_gradient import Integration, Path, PathGradient, missed, remedy
from dcinterp.mechanism.prompt import require_stage
from dcinterp.mechanism.statistics import (
    AgainstControl,
    bootstrap_interval,
    exchanged_extremes,
    few_examples,
    sign_test,
)
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.progress import Progress, all_once, silent
from dcinterp.support.ranges import Count, Level, Number, Tolerance

Control = Literal["labels", "heads", "none"]


@dataclass(frozen=True)
class EdgeAttributionSet(AgainstControl, Result):
    """Scores of all edges over n examples, in units of the metric.

    mean, low, high, control_low, control_high [layer, branch, head_from, head_to] (zero without a control);
    per_example [example, layer, branch, head_from, head_to]; gap, metric_difference [example, path]; metric and right
    [example]; ablation [example, edge]: the measured effect of removing each of the edges in `checked`.
    distinct: how many sets of facts they hold (None: not known, of an earlier version).
    """

    PROSE: ClassVar[tuple[str, ...]] = ("prompts",)  # with the answer behind them in earlier versions
    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        **{
            name: ("layer", "branch", "head_from", "head_to")
            for name in ("mean", "low", "high", "control_low", "control_high")
        },
        "per_example": ("example", "layer", "branch", "head_from", "head_to"),
        "gap": ("example", "path"),
        "metric_difference": ("example", "path"),
        "metric": ("example",),
        "right": ("example",),
        "ablation": ("example", "edge"),
    }

    n: int
    level: float
    objective: str
    stage: str
    method: str
    path: str
    dynamic_weights: str
    control: Control
    tolerance: float
    prompts: tuple[str, ...]
    targets: tuple[str, ...]
    foils: tuple[str, ...]
    checked: tuple[str, ...]
    mean: Float[Tensor, "layer branch head_from head_to"]
    low: Float[Tensor, "layer branch head_from head_to"]
    high: Float[Tensor, "layer branch head_from head_to"]
    control_low: Float[Tensor, "layer branch head_from head_to"]
    control_high: Float[Tensor, "layer branch head_from head_to"]
    per_example: Float[Tensor, "example layer branch head_from head_to"]
    gap: Float[Tensor, "example path"]
    metric_difference: Float[Tensor, "example path"]
    metric: Float[Tensor, " example"]
    right: Bool[Tensor, " example"]
    ablation: Float[Tensor, "example edge"]
    distinct: int | None = None

    def labels(self, axis: str) -> list[str] | None:
        names = {"branch": list(NAMES), "example": list(self.prompts), "edge": list(self.checked)}
        return names.get(axis)

    def warnings(self) -> list[str]:
        sentences = []
        wrong = int((~self.right).sum())
        if wrong:
            sentences.append(
                f"The model's answer is wrong in {wrong} of {self.n} examples: the scores explain the right one."
            )
        gaps = missed(self.gap, self.metric_difference, self.tolerance)
        if self.method.startswith("ig") and gaps.any():
            sentences.append(
                f"The scores of {int(gaps.sum())} of {self.n} examples miss more than {self.tolerance:.0%} of "
                f"the metric difference on some path: {remedy(self.method)}"
            )
        table = self.table()
        ablated = table[table["ablation"].notna()]
        disagree = ablated[ablated["mean"] * ablated["ablation"] < 0]
        if len(disagree):
            signs = sign_test(ablated["mean"].tolist(), ablated["ablation"].tolist())
            sentences.append(
                f"Attribution and ablation disagree in sign for {len(disagree)} of the {signs.n} strongest edges "
                f"({', '.join(disagree['edge'][:3])}{', ...' if len(disagree) > 3 else ''}): trust the ablation."
            )
        unit = UNITS[self.objective]
        scores, effects = ablated["mean"].tolist(), ablated["ablation"].tolist()
        sentences += magnitude_warnings(ablated["edge"].tolist(), scores, effects, method=self.method, unit=unit)
        sentences += mixed_metrics(self.foils) + few_examples(self.n, self.low, self.distinct)
        sentences += label_warnings(self.targets, self.foils, self.control)
        return sentences

    def table(self) -> pd.DataFrame:
        """One row per edge that scores anything, the largest means first; `ablation` where it was measured.

        shared: the attention is another head's; the others are a head's own.
        """
        ablation = dict(zip(self.checked, self.ablation.mean(0).tolist(), strict=True)) if self.checked else {}
        rows = []
        for i, b, f, h in self.mean.nonzero().tolist():
            name = Intervention("edge", i, self.stage, NAMES[b], h, f).unit
            numbers = {key: float(getattr(self, key)[i, b, f, h]) for key in ("mean", "low", "high")}
            numbers |= {key: float(getattr(self, key)[i, b, f, h]) for key in ("control_low", "control_high")}
            rows.append(
                {
                    "edge": name,
                    "shared": f != h,
                    **numbers,
                    "ablation": ablation.get(name),
                    "stands_out": bool(self.stands_out[i, b, f, h]),
                }
            )
        names = ["edge", "shared", "mean", "low", "high", "control_low", "control_high", "ablation", "stands_out"]
        return pd.DataFrame(rows, columns=names).sort_values("mean", key=abs, ascending=False, ignore_index=True)


@analysis(
    title="Edge attribution over a dataset",
    needs_composition=True,
    question="Which edges matter over a set of examples?",
    guide="analyses/edges.md",
    in_units=True,
    example={"examples": "same-person n=2", "method": "gradient"},
)
def attribute_edges_over(
    bridge: Bridge,
    examples: Examples,
    *,
    objective: Objective = "logit",
    stage: Literal["pre", "post"] = "post",
    method: EdgeMethod = "screened",
    path: Path = "layer",
    dynamic_weights: DynamicWeights = "recomputed",
    control: Control = "labels",
    check: Number = 8,
    level: Level = 0.95,
    seed: int = 0,
    steps: Count = 16,
    max_steps: Count = 256,
    tolerance: Tolerance = 0.01,
    batch_size: Count = 64,
    progress: Progress = silent,
) -> EdgeAttributionSet:
    """Attribute the answers of many questions to every edge, and say how sure the mean is.

    Args:
        bridge: a bridge over a model whose heads are composed at `stage`.
        examples: a text such as "same-person n=100 seed=1", or a list of examples of the tasks or of (prompt, target,
            foil); see dcinterp.mechanism.dataset.
        objective: "logit" (with a foil, the difference) or "log-probability".
        stage: "post" for attention weights shared with values, "pre" for scores shared with another head's softmax.
        method: as of `attribute_edges`; "screened" measures the strongest edges of every example anew.
        path: "layer" moves one layer at a time, whose scores add up to that layer's whole effect; "joint" moves all
            layers together, so that the scores of all layers add up to one difference.
        dynamic_weights: "recomputed" lets later compositions respond to the change; "frozen" keeps their weights.
        control: "labels" (twice the cost; none where all examples have the same answers), "heads" or "none".
        check: how many of the edges between different heads of largest mean to ablate in every example; and, by method
            "screened", the `check` of `attribute_edges`.
        level: confidence level of the intervals over examples.
        seed: seed of the bootstrap and the control.
        steps, max_steps, tolerance: Gauss-Legendre points to start with, doubled up to `max_steps` until the gap is
            below `tolerance` of the metric difference.
        batch_size: rows of one forward and backward pass; bounds the memory.
        progress: called after each example: scored, scored for other labels, and with its edges removed.

    Cost: that of `attribute_edges` per example, twice with control "labels"; per_example has n * layers * 5 * heads^2
    numbers.

    Raises:
        UserError: there are no examples, one does not fit the model, the model does not compose at that stage, or a
            choice is unknown.
    """
    check_edge_choices(path, method)
    require_stage(bridge, stage)
    questions = read_questions(bridge, examples)
    integration = Integration(steps, max_steps, tolerance, batch_size)
    scorer = _Scorer(bridge, objective, stage, method, path, freezes(dynamic_weights), integration, check)
    permute = control == "labels"
    made, elsewhere = score_examples(
        bridge,
        questions,
        lambda place, answers: scorer.score(questions[place], answers),
        permute_labels=permute,
        seed=seed,
        progress=progress,
        later=len(questions),
    )
    control = "none" if permute and elsewhere is None else control
    scores = torch.stack([each.scores for each in made])
    groups = repeats(bridge, questions)
    low, high = bootstrap_interval(scores, level=level, seed=seed, groups=groups)
    if elsewhere is not None:
        permuted = torch.stack([each.scores for each in elsewhere])
        control_low, control_high = bootstrap_interval(permuted, level=level, seed=seed, groups=groups)
    elif control == "heads":
        control_low, control_high = _exchanged_edges(scores, seed, groups)
    else:
        control_low = control_high = torch.zeros_like(scores[0])
    strongest, explanations = _strongest(scores.mean(0), check, stage), [each.explanation for each in made]
    checks = [(f"removals, example {n + 1}", partial(scorer.ablate, e, strongest)) for n, e in enumerate(explanations)]
    ablations = all_once(progress, checks, before=len(made) + len(elsewhere or ()))
    actual, start, gap = (
        torch.tensor([[getattr(each, name) for each in one.integrals] for one in made])
        for name in ("actual", "at_baseline", "gap")
    )
    return EdgeAttributionSet(
        n=len(made),
        level=level,
        objective=objective,
        stage=stage,
        method=method,
        path=path,
        dynamic_weights=dynamic_weights,
        control=control,
        tolerance=tolerance,
        prompts=tuple(explanation.prompt_text(bridge) for explanation in explanations),
        targets=tuple(explanation.target for explanation in explanations),
        foils=tuple(explanation.foil for explanation in explanations),
        checked=tuple(one.unit for one in strongest),
        mean=scores.mean(0),
        low=low.float(),
        high=high.float(),
        control_low=control_low.float(),
        control_high=control_high.float(),
        per_example=scores,
        gap=gap,
        metric_difference=actual - start,
        metric=actual[:, 0],
        right=torch.tensor([scorer.right(explanation) for explanation in explanations]),
        ablation=torch.stack(ablations),
        distinct=len(set(groups)),
    )


class _Scored(NamedTuple):
    """An example with its scores [layer, branch, head_from, head_to] and the integrals behind them, one a path."""

    explanation: Explanation
    scores: Tensor
    integrals: list[PathGradient]


@dataclass(frozen=True)
class _Scorer:
    """How every example is scored."""

    bridge: Bridge
    objective: Objective
    stage: str
    method: str
    path: str
    frozen: bool
    integration: Integration
    check: int

    def score(self, question: Question, answers: Question) -> _Scored:
        """The edges of one question's prompt, explaining the answers of this or of another question."""
        explanation = explain(self.bridge, question.prompt, answers.target, answers.foil, objective=self.objective)
        explainer, layers = self._explainer(explanation), list(range(self.bridge.cfg.n_layers))
        credits, integrals = explainer.scores(explanation.metric, layers, self.path, per_source=False)
        scores = torch.stack([each.by_source[..., 0] for each in credits]).float()
        if self.method in MEASURING:
            scores, _, _ = explainer.with_measured(explanation.metric, layers, scores, self.check)
        return _Scored(explanation, scores, integrals)

    def right(self, explanation: Explanation) -> bool:
        """Whether the model gives the answer that is explained."""
        with torch.no_grad():
            return explanation.is_right(self.bridge(explanation.ids))

    def ablate(self, explanation: Explanation, interventions: list[Intervention]) -> Float[Tensor, " edge"]:
        """The measured effect of each removal, alone."""
        if not interventions:
            return torch.zeros(0)
        return self._explainer(explanation).measure(explanation.metric, interventions).float()

    def _explainer(self, explanation: Explanation) -> EdgeExplainer:
        hooks = frozen_hooks(self.bridge, explanation.ids) if self.frozen else ()
        return EdgeExplainer(self.bridge, explanation.ids, None, self.stage, self.method, hooks, self.integration)


def _strongest(mean: Float[Tensor, "layer branch head_from head_to"], k: int, stage: str) -> list[Intervention]:
    """The removals of the edges between different heads of largest |mean|."""
    shared = mean.abs().clone()
    shared.diagonal(dim1=-2, dim2=-1).fill_(0)
    order = shared.flatten().argsort(descending=True, stable=True)[:k]
    places = (torch.unravel_index(place, mean.shape) for place in order if shared.flatten()[place] > 0)
    return [
        Intervention("edge", i, stage, NAMES[b], h, f) for i, b, f, h in ([int(x) for x in place] for place in places)
    ]


def _exchanged_edges(
    scores: Float[Tensor, "example layer branch head_from head_to"], seed: int, groups: Sequence[Hashable] | None = None
) -> tuple[Tensor, Tensor]:
    """The middle 95 % of a branch's largest mean (in size, signed) when its edges change places in every example."""
    layers, branches = scores.shape[1:3]
    flat, generator = scores.flatten(3), torch.Generator().manual_seed(seed)
    low, high = torch.zeros(layers, branches), torch.zeros(layers, branches)
    for i in range(layers):
        for b in range(branches):
            # Edges that a branch does not have stay out of the draw.
            some = flat[:, i, b][:, (flat[:, i, b] != 0).any(0)]
            if some.shape[1] > 1:
                low[i, b], high[i, b] = exchanged_extremes(some, generator, repeats=groups)
    shape = scores.shape[1:]
    return low[..., None, None].expand(shape).contiguous(), high[..., None, None].expand(shape).contiguous()
