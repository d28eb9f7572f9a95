"""How the answers of one attribution method are scored against a known circuit (see `method_benchmark`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.mechanism.statistics import auroc, bootstrap_interval, top_precision

QUESTIONS = ("edges", "attention", "output", "branches")
FORMER_QUESTIONS = {"finds": "attention", "writes": "output"}
"""What version 0.1 called the questions, and their names now."""
NEGLIGIBLE = 0.01
"""Share of the largest score below which a score counts as zero."""
NOTABLE_EFFECT = 0.1
"""Logits: the sign of a smaller measured effect is ignored."""


class Answer(NamedTuple):
    """A method's answer to one question: how much each part belongs to the circuit, and its predicted effect."""

    belongs: Float[Tensor, " part"]
    predicted: Float[Tensor, " part"]


class Case(NamedTuple):
    """One question about one example: which parts belong to the circuit, and the effect of removing each."""

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
        # Not as bounded shares: where all models agree, `dcinterp planted` prints no interval.
        low, high = (end.clamp(0, 1) for end in bootstrap_interval(self.aurocs))
        return {
            "auroc": sum(self.aurocs) / len(self.aurocs),
            "auroc_low": float(low),
            "auroc_high": float(high),
            "auroc_shuffled": sum(self.shuffled) / len(self.shuffled),
            "precision": sum(self.precisions) / len(self.precisions),
            "sign_agreement": self.agree / self.signs if self.signs else math.nan,
            "effects": self.signs,
            "calibration_error": self.error / max(self.effect, 1e-9),
        }
