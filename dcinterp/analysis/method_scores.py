r"""How well attribution methods recover circuits whose truth is known: what `method_benchmark` returns.

    AUROC = chance that a random part of the circuit scores above a random other part      (1 perfect, 0.5 chance)
    precision = share of the circuit among as many of the highest scores as it has parts   (stricter: parts are rare)
    sign agreement = share of the parts with a measured effect whose predicted effect has its sign
    calibration error = sum |predicted - measured| / sum |measured|      (0 exact, 1 as good as predicting no effect)

Four questions are asked of every method that can answer them:

    edges       which (layer, branch, head_from, head_to) make the answer
    finds       which heads' attention is used, by themselves or by others
    writes      which heads' output makes the answer
    branches    which branch of which layer carries it

Scores below a hundredth of the largest count as zero (ties are chance): nobody reads them, and in float32 a gradient
through a saturated softmax leaves traces that order the parts of a circuit by accident. A label is planted; a measured
effect is the change of the logit difference when that part alone is taken out of the composed attention
(dcinterp.planted.effects).

It does not show how a method does on trained models, whose circuits are neither this sharp nor this sparse: a method
that fails here is in doubt everywhere, one that passes here is not proved.

Identity that the tests assert: the measured effects themselves have calibration error 0, labels in random order an
AUROC of about 0.5.

    scores = dcinterp.method_benchmark(["lend-by-kp", "lend-by-kp noise=0.01"], seeds=8)
    print(scores.markdown("edges"))
    dcinterp.figures.plot(scores, question="finds")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.analysis.result import Result
from dcinterp.analysis.statistics import auroc, bootstrap_interval, top_precision
from dcinterp.errors import UserError, nearest

QUESTIONS = ("edges", "finds", "writes", "branches")
NEGLIGIBLE = 0.01
"""Share of the largest score below which a score counts as zero."""
NOTABLE_EFFECT = 0.1
"""Logits: smaller measured effects have no sign worth agreeing with."""


@dataclass(frozen=True)
class MethodScores(Result):
    """Scores of every (method, question) pair on every setting.

    settings: what was planted, as for `read_plant`; method, question: one pair per entry of the axis `score`.
    seeds: models per setting; examples: prompts per model. Intervals (95 %) are over models.
    auroc_shuffled: the same AUROC when labels are put in random order. effects: how many measured effects had a sign.
    accuracy: share of right answers of the planted models.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "auroc": ("setting", "score"),
        "auroc_low": ("setting", "score"),
        "auroc_high": ("setting", "score"),
        "auroc_shuffled": ("setting", "score"),
        "precision": ("setting", "score"),
        "sign_agreement": ("setting", "score"),
        "effects": ("setting", "score"),
        "calibration_error": ("setting", "score"),
        "accuracy": ("setting",),
    }

    settings: tuple[str, ...]
    method: tuple[str, ...]
    question: tuple[str, ...]
    seeds: int
    examples: int
    auroc: Float[Tensor, "setting score"]
    auroc_low: Float[Tensor, "setting score"]
    auroc_high: Float[Tensor, "setting score"]
    auroc_shuffled: Float[Tensor, "setting score"]
    precision: Float[Tensor, "setting score"]
    sign_agreement: Float[Tensor, "setting score"]
    effects: Int[Tensor, "setting score"]
    calibration_error: Float[Tensor, "setting score"]
    accuracy: Float[Tensor, " setting"]

    def labels(self, axis: str) -> list[str] | None:
        pairs = [f"{m}: {q}" for m, q in zip(self.method, self.question, strict=True)]
        return {"setting": list(self.settings), "score": pairs}.get(axis)

    def of(self, question: str, quantity: str = "auroc") -> tuple[list[str], Float[Tensor, "setting method"]]:
        """The methods that answer a question, and their numbers.

        Raises:
            UserError: there is no such question or quantity.
        """
        if question not in self.question:
            raise UserError(f"There is no question {question!r} here; {nearest(question, set(self.question))}")
        if self.AXES.get(quantity) != ("setting", "score"):
            known = [name for name, axes in self.AXES.items() if "score" in axes]
            raise UserError(f"There is no quantity {quantity!r} here; {nearest(quantity, known)}")
        at = [number for number, asked in enumerate(self.question) if asked == question]
        return [self.method[number] for number in at], getattr(self, quantity)[:, at]

    def markdown(self, question: str, quantity: str = "auroc") -> str:
        """One quantity as a table of settings and methods; AUROCs with their intervals over models."""
        methods, values = self.of(question, quantity)
        rows = [["planted", "answers right", *methods], ["---"] * (len(methods) + 2)]
        for number, setting in enumerate(self.settings):
            cells = [f"{value:.2f}" for value in values[number].tolist()]
            if quantity == "auroc":
                bounds = [self.of(question, f"auroc_{end}")[1][number].tolist() for end in ("low", "high")]
                cells = [
                    cell if high - low < 0.005 else f"{cell} ({low:.2f}-{high:.2f})"
                    for cell, low, high in zip(cells, *bounds, strict=True)
                ]
            rows.append([setting, f"{float(self.accuracy[number]):.0%}", *cells])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def banners(self) -> list[str]:
        wrong = [
            f"{setting}: the planted models answer {float(share):.0%} of their examples; noise has changed what is "
            "planted, and so the labels are in doubt."
            for setting, share in zip(self.settings, self.accuracy, strict=True)
            if share < 0.9
        ]
        few = ["Intervals over fewer than 5 models say little; ask for more seeds."] if self.seeds < 5 else []
        return wrong + few


class Answer(NamedTuple):
    """What a method says to one question: how much each part belongs to the circuit, and its predicted effect."""

    belongs: Float[Tensor, " part"]
    predicted: Float[Tensor, " part"]


class Case(NamedTuple):
    """One question about one example: which parts belong to the circuit, and what taking each out does."""

    labels: Tensor
    measured: Float[Tensor, " part"]


class Tally:
    """Collects one method's answers to one question, model by model."""

    def __init__(self) -> None:
        self.aurocs: list[float] = []
        self.shuffled: list[float] = []
        self.precisions: list[float] = []
        self.signs = self.agree = 0
        self.error = self.effect = 0.0

    def add(self, pairs: Sequence[tuple[Answer, Case]], generator: torch.Generator) -> None:
        """Add the answers for all examples of one model."""
        found, control, precision = [], [], []
        for answer, case in pairs:
            belongs = answer.belongs.where(answer.belongs >= NEGLIGIBLE * answer.belongs.max(), torch.zeros(()))
            found.append(auroc(belongs, case.labels))
            precision.append(top_precision(belongs, case.labels))
            control.append(auroc(belongs, case.labels[torch.randperm(len(case.labels), generator=generator)]))
            notable = case.measured.abs() > NOTABLE_EFFECT
            self.signs += int(notable.sum())
            self.agree += int((answer.predicted.sign() == case.measured.sign())[notable].sum())
            self.error += float((answer.predicted - case.measured).abs().sum())
            self.effect += float(case.measured.abs().sum())
        self.aurocs.append(sum(found) / len(found))
        self.shuffled.append(sum(control) / len(control))
        self.precisions.append(sum(precision) / len(precision))

    def numbers(self) -> dict[str, float]:
        """By the names of the result's fields."""
        low, high = bootstrap_interval(self.aurocs)
        return {
            "auroc": sum(self.aurocs) / len(self.aurocs),
            "auroc_low": float(low),
            "auroc_high": float(high),
            "auroc_shuffled": sum(self.shuffled) / len(self.shuffled),
            "precision": sum(self.precisions) / len(self.precisions),
            "sign_agreement": self.agree / max(self.signs, 1),
            "effects": self.signs,
            "calibration_error": self.error / max(self.effect, 1e-9),
        }


def collect(
    settings: Sequence[str],
    tallies: Sequence[Mapping[tuple[str, str], Tally]],
    accuracy: Sequence[float],
    *,
    seeds: int,
    examples: int,
) -> MethodScores:
    """The result from the tallies of every setting, by (method, question)."""
    pairs = list(tallies[0])
    numbers = [[tally[pair].numbers() for pair in pairs] for tally in tallies]
    names = [name for name, axes in MethodScores.AXES.items() if "score" in axes]
    tensors = {name: torch.tensor([[cell[name] for cell in row] for row in numbers]) for name in names}
    return MethodScores(
        settings=tuple(settings),
        method=tuple(method for method, _ in pairs),
        question=tuple(question for _, question in pairs),
        seeds=seeds,
        examples=examples,
        accuracy=torch.tensor(accuracy),
        **tensors,  # type: ignore[arg-type]
    )
