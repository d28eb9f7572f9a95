r"""Head attribution averaged over a set of questions, with intervals and a control.

    mean[l, h] = mean over examples of score[l, h];     low, high: its interval over examples

score is that of `attribute_heads`, each example against its own foil. The baseline is zero, the mean head output over
the same prompts, or each example's counterfactual prompt (see synthetic_tasks.corrupt).

The control shows which scores mean something. "heads": within every example and layer the heads change places at
random, so that no head is the same head twice; [control_low, control_high] holds the middle 95 % of the *largest*
mean (in size, with its sign) that a layer gets that way, which is what the best head must beat. "labels":
every example is scored once more on the target and foil of another example, never on its own (see
dcinterp.mechanism.label_permutation); the interval is that of a head's mean score for answers that do not belong to the
examples.

Source: that of dcinterp.analysis.attribution.attribute_heads; the controls are ours.

It does not show that a head is needed (see `ablation_mean`, measured), nor that the examples are alike: a mean of 1 may
be 4 in one family of tasks and 0 in three others (`per_example` has them all).

Identity that the tests assert: for one example it is `attribute_heads`; and the control holds about 95 % of what
exchangeable heads give.

    scores = dcinterp.attribute_heads_over(model, "different-in-set n=100")
    scores.mean, scores.low, scores.high       # [layer, head]
    dcinterp.figures.plot(scores)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.dataset import (
    Examples,
    Question,
    counterfactual_prompts,
    question_text,
    read_questions,
    repeats,
)
from dcinterp.mechanism.head_scores import HeadScores, head_scores, mean_outputs, outputs
from dcinterp.mechanism.label_permutation import label_warnings, score_examples
from dcinterp.mechanism.magnitude_check import magnitude_warnings
from dcinterp.mechanism.objective import UNITS, Explanation, Objective, explain, mixed_metrics
from dcinterp.mechanism.path_gradient import Integration, Method, Path, missed, remedy
from dcinterp.mechanism.prompt import token_ids
from dcinterp.mechanism.statistics import (
    AgainstControl,
    bootstrap_interval,
    exchanged_extremes,
    few_examples,
    sign_test,
)
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import require_known
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count, Level, Tolerance
from synthetic_tasks import KINDS

Baseline = Literal["zero", "mean", "counterfactual"]
Control = Literal["heads", "labels", "none"]

Start = Mapping[str, Tensor] | None
"""Head outputs by hook that a path begins at; None for zero."""


@dataclass(frozen=True)
class HeadAttributionSet(AgainstControl, Result):
    """Scores of all heads over n examples, in units of the metric.

    mean, low, high [layer, head]; ablation_mean [layer, head], the measured effect of each head alone;
    control_low, control_high [layer, head]: see the head of this module (the same for all heads of a layer under
    "heads"; zero under "none"); per_example, ablation [example, layer, head]; gap, metric_difference [example, layer],
    the difference being f(z) - f(b); metric [example]; right [example]: the model gives the target.
    skipped: examples without a counterfactual prompt.
    distinct: how many sets of facts they hold (None: not known, of an earlier version).
    agreement: share of (example, head) pairs whose score and
    ablation have the same sign, among notable scores; agreement_p: its one-sided sign test, which takes
    all of them for independent. Scores of one head are not, so the number is too small.
    """

    FORMER: ClassVar[dict[str, str]] = {
        f"baseline=twin ({word})": f"counterfactual ({now})"
        for word, now in [("asked", "question"), *((kind, kind) for kind in KINDS)]
    }
    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "mean": ("layer", "head"),
        "low": ("layer", "head"),
        "high": ("layer", "head"),
        "ablation_mean": ("layer", "head"),
        "control_low": ("layer", "head"),
        "control_high": ("layer", "head"),
        "per_example": ("example", "layer", "head"),
        "ablation": ("example", "layer", "head"),
        "gap": ("example", "layer"),
        "metric_difference": ("example", "layer"),
        "metric": ("example",),
        "right": ("example",),
    }

    n: int
    skipped: int
    level: float
    objective: str
    path: str
    baseline: str
    method: str
    control: Control
    tolerance: float
    agreement: float
    agreement_p: float
    tasks: tuple[str, ...]
    prompts: tuple[str, ...]
    targets: tuple[str, ...]
    foils: tuple[str, ...]
    mean: Float[Tensor, "layer head"]
    low: Float[Tensor, "layer head"]
    high: Float[Tensor, "layer head"]
    ablation_mean: Float[Tensor, "layer head"]
    control_low: Float[Tensor, "layer head"]
    control_high: Float[Tensor, "layer head"]
    per_example: Float[Tensor, "example layer head"]
    ablation: Float[Tensor, "example layer head"]
    gap: Float[Tensor, "example layer"]
    metric_difference: Float[Tensor, "example layer"]
    metric: Float[Tensor, " example"]
    right: Bool[Tensor, " example"]
    distinct: int | None = None

    @property
    def best(self) -> tuple[int, int]:
        """(layer, head) of the largest mean."""
        layer, head = divmod(int(self.mean.argmax()), self.mean.shape[1])
        return layer, head

    def labels(self, axis: str) -> list[str] | None:
        return list(self.prompts) if axis == "example" else None

    def warnings(self) -> list[str]:
        sentences = []
        wrong = int((~self.right).sum())
        if wrong:
            sentences.append(
                f"The model's answer is wrong in {wrong} of {self.n} examples: their scores explain an answer that it "
                "does not give."
            )
        gaps = missed(self.gap, self.metric_difference, self.tolerance)
        if gaps.any():
            sentences.append(
                f"The scores of {int(gaps.sum())} of {self.n} examples miss more than {self.tolerance:.0%} of "
                f"the metric difference in some layer: {remedy(self.method)}"
            )
        if self.agreement < 0.75:
            sentences.append(
                f"Attribution and ablation agree in sign in only {self.agreement:.0%} of the notable scores: they do "
                "not say what removing a head does."
            )
        layers, heads = self.mean.shape
        names = [f"L{layer}H{head}" for layer in range(layers) for head in range(heads)]
        sentences += magnitude_warnings(
            names, self.mean, self.ablation_mean, method=self.method, unit=UNITS[self.objective]
        )
        sentences += mixed_metrics(self.foils) + few_examples(self.n, self.low, self.distinct)
        sentences += label_warnings(self.targets, self.foils, self.control)
        if self.skipped:
            sentences.append(f"{self.skipped} examples have no counterfactual prompt and were left out.")
        return sentences

    def table(self) -> pd.DataFrame:
        """One row a head, the largest means first."""
        layers, heads = self.mean.shape
        frame = pd.DataFrame([(i, h) for i in range(layers) for h in range(heads)], columns=["layer", "head"])
        for name in ("mean", "low", "high", "ablation_mean", "control_low", "control_high"):
            frame[name] = getattr(self, name).flatten().tolist()
        frame["stands_out"] = self.stands_out.flatten().tolist()
        return frame.sort_values("mean", key=abs, ascending=False, ignore_index=True)


@analysis(
    title="Head attribution over a dataset",
    question="Which heads contribute to the answers of a set of examples?",
    guide="analyses/head-attribution.md",
    in_units=True,
    example={"examples": "same-person n=2", "method": "gradient"},
    former={"twin": "counterfactual", "counterfactual=asked": "question", "baseline=twin": "counterfactual"},
)
def attribute_heads_over(
    bridge: Bridge,
    examples: Examples,
    *,
    objective: Objective = "logit",
    method: Method = "ig",
    path: Path = "layer",
    baseline: Baseline = "zero",
    counterfactual: str = "question",
    control: Control = "heads",
    level: Level = 0.95,
    seed: int = 0,
    steps: Count = 8,
    max_steps: Count = 256,
    tolerance: Tolerance = 0.01,
    batch_size: Count = 64,
    progress: Progress = silent,
) -> HeadAttributionSet:
    """Attribute the answers of many questions to every head, and say how sure the mean is.

    Args:
        bridge: any bridge.
        examples: a text such as "same-person n=100 seed=1", or a list of examples of the tasks or of (prompt, target,
            foil); see dcinterp.mechanism.dataset.
        objective: "logit" (difference from the foil where there is one) or "log-probability".
        method: "ig" or "gradient".
        path: "layer" or "joint"; see dcinterp.analysis.attribution.attribute_heads.
        baseline: "zero", "mean" over the examples' own prompts, or each example's "counterfactual" prompt.
        counterfactual: what that prompt changes: question, source, relation, polarity or position.
        control: "heads", "labels" (twice the cost; none where all examples have the same answers) or "none".
        level: confidence level of the intervals over examples.
        seed: seed of the bootstrap and the control.
        steps, max_steps, tolerance: Gauss-Legendre points to start with, doubled up to `max_steps` until the gap is
            below `tolerance` of the metric difference.
        batch_size: rows of one forward and backward pass; bounds the memory.
        progress: called after each example.

    Cost: that of `attribute_heads` per example, twice with control "labels".

    Raises:
        UserError: there are no examples (with a counterfactual prompt), one does not fit the model, or a choice is
            unknown.
    """
    given = read_questions(bridge, examples)
    questions, starts = _starts(bridge, given, baseline, counterfactual)
    rule = Integration(steps, max_steps, tolerance, batch_size)

    def score(place: int, answers: Question) -> tuple[Explanation, HeadScores]:
        prompt, start = questions[place].prompt, starts[place]
        explanation = explain(bridge, prompt, answers.target, answers.foil, objective=objective)
        return explanation, head_scores(bridge, explanation, start(), path=path, method=method, integration=rule)

    permute = control == "labels"
    made, elsewhere = score_examples(bridge, questions, score, permute_labels=permute, seed=seed, progress=progress)
    control = "none" if permute and elsewhere is None else control
    scores = torch.stack([each.by_position.sum(-1) for _, each in made])
    ablation = torch.stack([each.ablation for _, each in made])
    groups = repeats(bridge, questions)
    low, high = bootstrap_interval(scores, level=level, seed=seed, groups=groups)
    control_low, control_high = torch.zeros_like(scores[0]), torch.zeros_like(scores[0])
    if control == "heads":
        extremes = exchanged_extremes(scores, torch.Generator().manual_seed(seed), repeats=groups)
        control_low, control_high = (each[:, None].expand_as(scores[0]).contiguous() for each in extremes)
    elif elsewhere is not None:
        permuted = torch.stack([each.by_position.sum(-1) for _, each in elsewhere])
        control_low, control_high = bootstrap_interval(permuted, level=level, seed=seed, groups=groups)
    notable = scores.abs() >= 0.1 * scores.abs().amax((1, 2), keepdim=True)
    signs = sign_test(scores[notable], ablation[notable])
    metric = torch.tensor([each.metric for _, each in made])
    return HeadAttributionSet(
        n=len(made),
        skipped=len(given) - len(questions),
        level=level,
        objective=objective,
        path=path,
        baseline=baseline if baseline != "counterfactual" else f"counterfactual ({counterfactual})",
        method=method,
        control=control,
        tolerance=tolerance,
        agreement=signs.share,
        agreement_p=signs.p_value,
        tasks=tuple(q.task for q in questions),
        prompts=tuple(question_text(bridge, q) for q in questions),
        targets=tuple(explanation.target for explanation, _ in made),
        foils=tuple(explanation.foil for explanation, _ in made),
        mean=scores.mean(0),
        low=low.float(),
        high=high.float(),
        ablation_mean=ablation.mean(0),
        control_low=control_low.float(),
        control_high=control_high.float(),
        per_example=scores,
        ablation=ablation,
        gap=torch.stack([each.gap for _, each in made]),
        metric_difference=metric[:, None] - torch.stack([each.at_baseline for _, each in made]),
        metric=metric,
        right=torch.tensor([each.right for _, each in made]),
        distinct=len(set(groups)),
    )


def _starts(
    bridge: Bridge, questions: list[Question], baseline: str, counterfactual: str
) -> tuple[list[Question], list[Callable[[], Start]]]:
    """The questions that have a baseline, and for each what makes its head outputs there."""
    require_known("counterfactual", counterfactual, KINDS)
    if baseline == "counterfactual":
        found = zip(questions, counterfactual_prompts(bridge, questions, counterfactual), strict=True)
        pairs = [(question, prompt) for question, prompt in found if prompt is not None]
        # Made when they are needed: those of all examples at once would take much memory.
        return [q for q, _ in pairs], [partial(_outputs_of, bridge, prompt) for _, prompt in pairs]
    mean = mean_outputs(bridge, [token_ids(bridge, q.prompt) for q in questions]) if baseline == "mean" else None
    return questions, [lambda: mean] * len(questions)


def _outputs_of(bridge: Bridge, prompt: str) -> Start:
    return outputs(bridge, token_ids(bridge, prompt))[1]
