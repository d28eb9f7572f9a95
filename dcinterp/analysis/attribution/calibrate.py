r"""Whether an attribution predicts what interventions do: every unit changed, the effect beside the predicted one.

    measured[u]  = f(clean) - f(u changed)
    predicted[u] = <x - x_u, g>     x: what u acts on in its layer (head outputs, or the composed scores in stage pre)

x_u is x with the unit changed, computed exactly inside the layer; g is the gradient of f at x, averaged over the
layer's path ("ig", from zero or, for counterfactuals, from the counterfactual prompt's x) or taken at x itself
("gradient"). The further rules are those of dcinterp.mechanism.edge_rules; "recomputed" is not a product in stage
pre. For edges set to zero predicted is the score of `attribute_edges`, for heads that of `attribute_heads`.

Both are taken twice: with all dynamic weights frozen at their clean values (value flow) and with weights that respond
to the change (recomputed: value and control flow). Source: the comparison of attribution with activation patching in
Syed et al. 2023 ("Attribution patching outperforms automated circuit discovery").

It does not show effects of several changes at once: each unit is changed alone, so if one can replace the other, both
effects are small. Units of one layer share a path, which an effect of one unit alone need not follow.

Identities that the tests assert: predicted equals the attribution scores; where f is linear in the last layer's output
predicted = measured there; predictions shuffled among the units lose their correlation.

    calibration = dcinterp.calibrate(model, "different-in-set n=10", "edge")
    calibration.summary()
    dcinterp.figures.plot(calibration)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from jaxtyping import Float
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
from dcinterp.mechanism.edge_rules import RULES, Answered, EdgeQuestion, Slope
from dcinterp.mechanism.edges import site
from dcinterp.mechanism.intervention_hooks import References, frozen_hooks, measure_effects, references
from dcinterp.mechanism.interventions import Intervention, all_units, checked
from dcinterp.mechanism.objective import Explanation, Objective, explain
from dcinterp.mechanism.path_gradient import Hooks, Integration, remedy, share_missed
from dcinterp.mechanism.prompt import token_ids
from dcinterp.mechanism.statistics import bootstrap_interval, calibration_error, few_examples, sign_test
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, require_known
from dcinterp.support.progress import Progress, all_once, silent
from dcinterp.support.ranges import Count, Level

FLOWS = ("frozen", "recomputed")
METHODS = ("ig", "gradient")
"""Those that are compared where none are named."""

CALIBRATED = tuple(name for name in RULES if name != "ig-counterfactual")
"""Those that can be: a path from another prompt is "ig" with the kind "counterfactual"."""
# The sign of an effect below this share of the example's largest is ignored.
NOTABLE = 0.01
TOLERANCE = 0.01
"""Share of a metric difference that an integral may miss."""

STATISTICS = ("agreement", "agreement_low", "agreement_high", "agreement_p", "correlation", "shuffled", "error")

Part = Literal["head", "branch", "edge", "weight"]
Kind = Literal["zero", "mean", "counterfactual"]


def require_calibrated(methods: Sequence[str]) -> None:
    """Refuse a method that cannot be calibrated.

    Raises:
        UserError: as said.
    """
    if not len(methods):
        raise UserError("There are no methods to compare; name at least one, or leave them out for the usual ones.")
    for method in methods:
        require_known("method", method, CALIBRATED)


@dataclass(frozen=True)
class Calibration(Result):
    """Predicted and measured effects of n examples on every unit, in units of the metric.

    predicted [method, flow, example, unit]; measured [flow, example, unit]; their means over examples with intervals
    [.., unit]. agreement, agreement_low, agreement_high [method, flow]: share of notable units (effect or prediction
    above 1 % of the example's largest effect) whose prediction has the sign of the effect, mean over examples;
    agreement_p: sign test over units, on their means. correlation [method, flow]: of the means over units, and
    shuffled, its 97.5 % point when predictions change places; error: sum |difference| / sum |measured|,
    NaN where nothing acts. distinct: how many sets of facts they hold (None: not known, of an earlier version).
    missed [flow, example]: the largest share of a layer's metric difference (or of a tenth of the largest layer's) that
    the integrals of "ig" miss; None without "ig", or of an earlier version.
    """

    PROSE: ClassVar[tuple[str, ...]] = ("prompts",)  # with the answer behind them in earlier versions
    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "predicted": ("method", "flow", "example", "unit"),
        "measured": ("flow", "example", "unit"),
        **{f"predicted_{name}": ("method", "flow", "unit") for name in ("mean", "low", "high")},
        **{f"measured_{name}": ("flow", "unit") for name in ("mean", "low", "high")},
        **dict.fromkeys(STATISTICS, ("method", "flow")),
        "missed": ("flow", "example"),
    }

    n: int
    part: Part
    kind: Kind
    stage: Literal["pre", "post"]
    objective: str
    level: float
    methods: tuple[str, ...]
    units: tuple[str, ...]
    left_out: int
    skipped: int
    wrong: int
    prompts: tuple[str, ...]
    predicted: Float[Tensor, "method flow example unit"]
    measured: Float[Tensor, "flow example unit"]
    predicted_mean: Float[Tensor, "method flow unit"]
    predicted_low: Float[Tensor, "method flow unit"]
    predicted_high: Float[Tensor, "method flow unit"]
    measured_mean: Float[Tensor, "flow unit"]
    measured_low: Float[Tensor, "flow unit"]
    measured_high: Float[Tensor, "flow unit"]
    agreement: Float[Tensor, "method flow"]
    agreement_low: Float[Tensor, "method flow"]
    agreement_high: Float[Tensor, "method flow"]
    agreement_p: Float[Tensor, "method flow"]
    correlation: Float[Tensor, "method flow"]
    shuffled: Float[Tensor, "method flow"]
    error: Float[Tensor, "method flow"]
    distinct: int | None = None
    missed: Float[Tensor, "flow example"] | None = None

    def __post_init__(self) -> None:
        require_calibrated(self.methods)

    def labels(self, axis: str) -> list[str] | None:
        names = {
            "method": list(self.methods),
            "flow": list(FLOWS),
            "unit": list(self.units),
            "example": list(self.prompts),
        }
        return names.get(axis)

    def summary(self) -> pd.DataFrame:
        """One row per method and flow."""
        rows = []
        for m, method in enumerate(self.methods):
            for f, flow in enumerate(FLOWS):
                numbers = {name: float(getattr(self, name)[m, f]) for name in STATISTICS}
                rows.append({"method": method, "weights": flow, **numbers})
        return pd.DataFrame(rows)

    def table(self) -> pd.DataFrame:
        """The `summary`; `by_unit` has the effects themselves."""
        return self.summary()

    def by_unit(self) -> pd.DataFrame:
        """One row a unit, the largest effects (recomputed) first."""
        frame = pd.DataFrame({"unit": self.units})
        for f, flow in enumerate(FLOWS):
            for name in ("mean", "low", "high"):
                frame[f"measured_{name}_{flow}"] = getattr(self, f"measured_{name}")[f].tolist()
            for m, method in enumerate(self.methods):
                frame[f"{method}_{flow}"] = self.predicted_mean[m, f].tolist()
        return frame.sort_values("measured_mean_recomputed", key=abs, ascending=False, ignore_index=True)

    def warnings(self) -> list[str]:
        sentences = []
        if self.wrong:
            sentences.append(
                f"The model's answer is wrong in {self.wrong} of {self.n} examples: effects are on an answer that it "
                "does not give."
            )
        for flow in (flow for at, flow in enumerate(FLOWS) if bool(self.error[:, at].isnan().any())):
            single = bool(self.measured[FLOWS.index(flow)].any())
            why = "All mean effects over examples are 0" if single else "No removal had an effect"
            sentences.append(f"{why} (dynamic weights {flow}), so there is no error as a share of one (nan).")
        for m, method in enumerate(self.methods):
            at = FLOWS.index("recomputed")
            if float(self.agreement[m, at]) < 0.75:
                sentences.append(
                    f"Attribution ({method}) and ablation agree in sign in only {float(self.agreement[m, at]):.0%} of "
                    "the notable cases: check the sign of a score by an intervention."
                )
            if float(self.error[m, at]) >= 1:
                sentences.append(
                    f"The calibration error of {method} is {float(self.error[m, at]):.2f}: it predicts the effect of a "
                    "single removal no better than always predicting no effect (1.00)."
                )
            if len(self.units) < 3:
                sentences.append("With one or two units no correlation means anything.")
            elif float(self.correlation[m, at]) <= float(self.shuffled[m, at]):
                sentences.append(
                    f"That the predictions of {method} go with the effects is not shown: they correlate by "
                    f"{float(self.correlation[m, at]):.2f}, and 97.5 % of shuffled ones by no more than "
                    f"{float(self.shuffled[m, at]):.2f}."
                )
        short = 0 if self.missed is None else int((self.missed > TOLERANCE).any(0).sum())
        if self.missed is not None and short:
            sentences.append(
                f"In {short} of {self.n} examples the integrals miss more than {TOLERANCE:.0%} of the metric "
                f"difference, up to {float(self.missed.max()):.0%}: {remedy('ig')}"
            )
        sentences += few_examples(self.n, self.measured_low, self.distinct)
        if self.left_out:
            sentences.append(f"{self.left_out} more units were left out at random; raise limit to include them all.")
        if self.skipped:
            sentences.append(f"{self.skipped} examples have no counterfactual prompt and were left out.")
        return sentences


@analysis(
    title="Calibration against interventions",
    question="Does an attribution predict what interventions do?",
    guide="analyses/causal.md",
    in_units=True,
    example={"examples": "same-person n=2", "part": "branch", "methods": "gradient"},
    former={"twin": "counterfactual", "counterfactual=asked": "question"},
)
def calibrate(
    bridge: Bridge,
    examples: Examples,
    part: Part = "edge",
    *,
    kind: Kind = "zero",
    stage: Literal["pre", "post"] = "post",
    objective: Objective = "logit",
    methods: Sequence[str] = METHODS,
    counterfactual: str = "question",
    limit: Count = 512,
    level: Level = 0.95,
    seed: int = 0,
    steps: Count = 16,
    max_steps: Count = 64,
    batch_size: Count = 64,
    progress: Progress = silent,
) -> Calibration:
    """Change every unit of one sort, alone, and compare the effects with what attributions predict.

    Args:
        bridge: any bridge; all parts but "head" need composed heads.
        examples: a text such as "same-person n=10", or a list of examples of the tasks or of (prompt, target, foil).
        part: the units: every "head", "branch", "edge" (of one head, or two, in one branch) or "weight" (of one head).
        kind: "zero", "mean" (over the examples' own prompts) or "counterfactual" (each example's own).
        stage: stage of the composition; heads belong to none.
        objective: "logit" (difference from the foil where there is one) or "log-probability".
        methods: the rules to compare, of those in `CALIBRATED` (see dcinterp.mechanism.edge_rules).
        counterfactual: what it changes: question, source, relation, polarity or position.
        limit: with more units than this, as many of them are drawn at random.
        level: confidence level of the intervals over examples.
        seed: seed of the draws.
        steps, max_steps: Gauss-Legendre points to start with, doubled up to `max_steps` until the gap is below 1 %;
            what is missed is returned, with a warning where it is more.
        batch_size: rows of one pass; bounds the memory.
        progress: called after each example.

    Cost per example, twice: a forward row per unit, and per layer `steps` + 3 rows forward and backward.

    Raises:
        UserError: there are no examples (with a counterfactual prompt), one does not fit the model, or a choice is
            unknown; or of heads, in a model whose heads are normed or gated after they have read.
    """
    require_calibrated(methods)
    questions, skipped = _with_counterfactuals(bridge, read_questions(bridge, examples), kind, counterfactual)
    units = list(all_units(bridge, part, stage, kind))
    if not units:
        raise UserError(
            f"This model has no {part} in its {stage} composition that {kind!r} changes; choose another part, such as "
            "part='head'."
        )
    left_out = max(0, len(units) - limit)
    if left_out:
        kept = torch.randperm(len(units), generator=torch.Generator().manual_seed(seed))[:limit]
        units = [units[i] for i in sorted(kept.tolist())]
    stage = "post" if part == "head" else stage
    if part == "head" and site(bridge, 0, stage) != "blocks.0.attn.hook_z":
        raise UserError(
            "In this model a norm or a gate makes what heads write of what they read, so removing a head is no step "
            "that these methods predict; use part='edge' or 'branch', or dcinterp.attribute_heads."
        )
    reference = [token_ids(bridge, question.prompt) for question, _ in questions] if kind == "mean" else None
    rule = Integration(steps, max_steps, TOLERANCE, batch_size)

    def compare(question: Question, other: Any) -> tuple[Tensor, Tensor, bool, Tensor]:
        """([method, flow, unit], [flow, unit], whether the model's answer is wrong, missed [flow]) of one example."""
        explanation = explain(bridge, question.prompt, question.target, question.foil, objective=objective)
        with torch.no_grad():
            found = bridge(explanation.ids)[0, list(explanation.positions)].argmax(-1)
            wrong = found.tolist() != list(explanation.expected)
        length = explanation.ids.shape[1]
        interventions = [one for unit in units for one in checked(bridge, unit, length)]
        values = references(bridge, interventions, length, other, reference)
        found = []
        for flow in FLOWS:
            hooks = frozen_hooks(bridge, explanation.ids) if flow == "frozen" else ()
            run = _Comparison(bridge, explanation, stage, other, values, hooks, rule)
            found.append(run.compare(interventions, methods))
        predicted, effects, missed = zip(*found, strict=True)
        return torch.stack(predicted, 1), torch.stack(effects), wrong, torch.tensor(missed)

    named = [(f"example {i + 1}", partial(compare, *pair)) for i, pair in enumerate(questions)]
    every = all_once(progress, named)
    texts = [question_text(bridge, question) for question, _ in questions]
    wrong = sum(each[2] for each in every)
    return _result(
        torch.stack([each[0] for each in every], 2),
        torch.stack([each[1] for each in every], 1),
        n=len(questions),
        part=part,
        kind=kind,
        stage=stage,
        objective=objective,
        level=level,
        methods=tuple(methods),
        units=tuple(unit.unit for unit in units),
        left_out=left_out,
        skipped=skipped,
        wrong=int(wrong),
        prompts=tuple(texts),
        missed=torch.stack([each[3] for each in every], 1) if "ig" in methods else None,
        seed=seed,
        groups=repeats(bridge, [question for question, _ in questions]),
    )


@dataclass(frozen=True)
class _Comparison:
    """Predicted and measured effects on one prompt, with hooks that freeze the dynamic weights or none."""

    bridge: Bridge
    explanation: Explanation
    stage: str
    other: Any
    values: References
    hooks: Hooks
    rule: Integration

    def compare(self, interventions: list[Intervention], methods: Sequence[str]) -> tuple[Tensor, Tensor, float]:
        """([method, unit], [unit], what the integrals of "ig" miss; 0 without it)."""
        predicted, effects = torch.zeros(len(methods), len(interventions)), torch.zeros(len(interventions))
        layers = sorted({one.layer for one in interventions})
        answered = [self._slopes(layers, method) for method in methods]
        slopes, missed = [each for each, _ in answered], 0.0
        if "ig" in methods:
            integrals = answered[list(methods).index("ig")][1]
            difference = torch.tensor([each.actual - each.at_baseline for each in integrals])
            missed = float(share_missed(torch.tensor([each.gap for each in integrals]), difference).max())
        for layer in layers:
            here = [i for i, one in enumerate(interventions) if one.layer == layer]
            here_slopes = [each[layer] for each in slopes]

            def watch(start: int, tensor: Tensor, here: list[int] = here, slopes: list[Slope] = here_slopes) -> None:
                # x of the clean row and of the changed ones; only what the rules make of them is kept.
                moved = (tensor[:1] - tensor[1:]).detach()
                where = here[start : start + len(moved)]
                for m, slope in enumerate(slopes):
                    predicted[m, where] = slope.effect(moved).float().cpu()

            effects[here] = (
                measure_effects(
                    self.bridge,
                    self.explanation.ids,
                    [[interventions[i]] for i in here],
                    self.explanation.metric,
                    self.values,
                    frozen=self.hooks,
                    batch_size=self.rule.batch_size,
                    watch=watch,
                    watched=site(self.bridge, layer, self.stage),
                )
                .float()
                .cpu()
            )
        return predicted, effects, missed

    def _slopes(self, layers: list[int], method: str) -> Answered:
        ask = EdgeQuestion(
            self.bridge,
            self.explanation.ids,
            self.explanation.metric,
            self.stage,
            tuple(layers),
            self.other,
            hooks=self.hooks,
            integration=self.rule,
            gaps=False,
        )
        return RULES[method].slopes(ask)


def _with_counterfactuals(
    bridge: Bridge, questions: list[Question], kind: str, counterfactual: str
) -> tuple[list[tuple[Question, Any]], int]:
    """Every question with the ids of its counterfactual prompt (None if none is needed), and how many have none."""
    if kind != "counterfactual":
        return [(question, None) for question in questions], 0
    pairs = zip(questions, counterfactual_prompts(bridge, questions, counterfactual), strict=True)
    made = [(question, token_ids(bridge, prompt)) for question, prompt in pairs if prompt is not None]
    return made, len(questions) - len(made)


def _result(
    predicted: Tensor, effects: Tensor, *, level: float, seed: int, groups: list[Hashable], **rest: Any
) -> Calibration:
    means, true = predicted.mean(2), effects.mean(1)
    methods, flows = len(predicted), len(FLOWS)
    statistics: dict[str, Any] = {name: torch.zeros(methods, flows) for name in STATISTICS}
    for m in range(methods):
        for f in range(flows):
            shares = torch.stack([_share(p, e) for p, e in zip(predicted[m, f], effects[f], strict=True)])
            some = ~shares.isnan()  # an example without any effect says nothing of signs
            low = high = torch.tensor(math.nan)
            if some.any():
                theirs = [group for group, there in zip(groups, some.tolist(), strict=True) if there]
                low, high = _share_interval(shares[some], level=level, seed=seed, groups=theirs)
            statistics["agreement"][m, f] = shares[some].mean()
            statistics["agreement_low"][m, f], statistics["agreement_high"][m, f] = low, high
            statistics["agreement_p"][m, f] = sign_test(means[m, f], true[f]).p_value
            statistics["correlation"][m, f] = _correlation(means[m, f], true[f])
            statistics["shuffled"][m, f] = _shuffled(means[m, f], true[f], seed)
            statistics["error"][m, f] = calibration_error(means[m, f], true[f]) if bool(true[f].any()) else math.nan
    p_low, p_high = bootstrap_interval(predicted.permute(2, 0, 1, 3), level=level, seed=seed, groups=groups)
    e_low, e_high = bootstrap_interval(effects.transpose(0, 1), level=level, seed=seed, groups=groups)
    return Calibration(
        distinct=len(set(groups)),
        predicted=predicted,
        measured=effects,
        predicted_mean=means,
        predicted_low=p_low.float(),
        predicted_high=p_high.float(),
        measured_mean=true,
        measured_low=e_low.float(),
        measured_high=e_high.float(),
        level=level,
        **statistics,
        **rest,
    )


def _share_interval(shares: Float[Tensor, " example"], **options: Any) -> tuple[Tensor, Tensor]:
    """The interval of a mean of shares; no narrower towards 0 or 1 than that of as many which are all there.

    Resamples of shares that lie at a bound, but for one beside it, would hardly leave it.
    """
    low, high = bootstrap_interval(shares, bounds=(0, 1), **options)
    least, most = (bootstrap_interval(torch.full_like(shares, at), bounds=(0, 1), **options) for at in (1.0, 0.0))
    return low.minimum(least[0]), high.maximum(most[1])


def _share(predicted: Float[Tensor, " unit"], effects: Float[Tensor, " unit"]) -> Tensor:
    """The share of notable units whose two numbers have the same sign; NaN where no effect is any."""
    if not effects.any():
        return torch.full((), math.nan)
    notable = torch.maximum(predicted.abs(), effects.abs()) >= NOTABLE * effects.abs().max()
    notable &= (predicted != 0) | (effects != 0)
    return (predicted.sign() == effects.sign())[notable].float().mean() if notable.any() else torch.full((), math.nan)


def _correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation; NaN where one of the two is the same everywhere."""
    x, y = (each.double() - each.double().mean() for each in (a, b))
    flat = any(float(each.norm()) <= 1e-9 * float(whole.double().norm()) for each, whole in ((x, a), (y, b)))
    return math.nan if flat else float(x @ y / x.norm() / y.norm())


def _shuffled(predicted: Tensor, effects: Tensor, seed: int) -> float:
    """The correlation that 2.5 % of random orders of the predictions exceed."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [_correlation(predicted[torch.randperm(len(predicted), generator=generator)], effects) for _ in range(1000)]
    return float(torch.tensor(drawn).quantile(0.975))
