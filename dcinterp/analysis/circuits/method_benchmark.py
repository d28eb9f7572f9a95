r"""How well attribution methods recover circuits whose truth is known: plant, run every method, measure, score.

    AUROC = chance that a random part of the circuit scores above a random other part      (1 perfect, 0.5 chance)
    precision = share of the circuit among as many of the highest scores as it has parts   (stricter: parts are rare)
    sign agreement = share of the parts with a measured effect whose predicted effect has its sign
    calibration error = sum |predicted - measured| / sum |measured|      (0 exact, 1 as good as predicting no effect)

Every method is scored on those of four questions that it can answer:

    edges       which edges (layer, branch, head_from, head_to) make the answer
    attention   which heads' attention is used, by the head itself or by others
    output      which heads' output makes the answer
    branches    through which branches of which layers

Scores below a hundredth of the largest count as zero (ties are chance): in float32 a gradient through a saturated
softmax leaves tiny values that order the parts of a circuit by accident. A label is planted; a measured effect is the
change of the logit difference when that part alone is removed from the composed attention
(dcinterp.planted.effects).

It does not show how good a method is on trained models, whose circuits are neither this sharp nor this sparse: a method
that fails here is doubtful everywhere, and one that passes here is not proved.

Identity that the tests assert: the measured effects themselves have calibration error 0, labels in random order an
AUROC of about 0.5.

    scores = dcinterp.method_benchmark(["share-by-kp", "share-by-kp noise=0.01"], seeds=8)
    print(scores.markdown("edges"))
    dcinterp.figures.plot(scores, question="attention")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.analysis.circuits.methods import METHODS, Trial
from dcinterp.mechanism.method_tally import FORMER_QUESTIONS, Tally
from dcinterp.planted import PlantedModel, Traits, circuits, read_plant, together, tokenizer
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.former_names import warn_of
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count
from dcinterp.support.text import markdown_table

CHECKED = 100
"""Examples on which a planted model's accuracy is measured."""


@dataclass(frozen=True)
class MethodScores(Result):
    """Scores of every (method, question) pair on every setting.

    settings: what was planted, as for `read_plant`; method, question: one pair per entry of the axis `score`.
    seeds: models per setting; examples: prompts per model. Intervals (95 %) are over models.
    auroc_shuffled: the same AUROC when labels are put in random order. effects: how many measured effects had a sign.
    accuracy: share of right answers of the planted models.
    """

    FORMER: ClassVar[dict[str, str]] = {f"question={old}": new for old, new in FORMER_QUESTIONS.items()}
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
        if question in FORMER_QUESTIONS:
            warn_of(f"the question {question}", FORMER_QUESTIONS[question])
            question = FORMER_QUESTIONS[question]
        if question not in self.question:
            raise UserError(f"There is no question {question!r} here; {nearest(question, set(self.question))}")
        if self.AXES.get(quantity) != ("setting", "score"):
            known = [name for name, axes in self.AXES.items() if "score" in axes]
            raise UserError(f"There is no quantity {quantity!r} here; {nearest(quantity, known)}")
        at = [number for number, other in enumerate(self.question) if other == question]
        return [self.method[number] for number in at], getattr(self, quantity)[:, at]

    def markdown(self, question: str, quantity: str = "auroc") -> str:
        """One quantity as a table of settings and methods; AUROCs with their intervals over models."""
        methods, values = self.of(question, quantity)
        rows = []
        for number, setting in enumerate(self.settings):
            cells = [f"{value:.2f}" for value in values[number].tolist()]
            if quantity == "auroc":
                bounds = [self.of(question, f"auroc_{end}")[1][number].tolist() for end in ("low", "high")]
                cells = [
                    cell if not high - low >= 0.005 else f"{cell} ({low:.2f}-{high:.2f})"
                    for cell, low, high in zip(cells, *bounds, strict=True)
                ]
            rows.append([setting, f"{float(self.accuracy[number]):.0%}", *cells])
        return markdown_table(["planted", "answers right", *methods], rows)

    def warnings(self) -> list[str]:
        wrong = [
            f"{setting}: the planted models answer only {float(share):.0%} of their examples correctly; noise has "
            "changed the circuit, so the labels are in doubt."
            for setting, share in zip(self.settings, self.accuracy, strict=True)
            if share < 0.9
        ]
        few = ["Intervals over fewer than 5 models are unreliable; give more seeds."] if self.seeds < 5 else []
        few = ["One model has no interval; give more seeds."] if self.seeds == 1 else few
        return wrong + few


@analysis(
    title="Methods against planted circuits",
    question="Do attribution methods find a known circuit?",
    guide="analyses/planted.md",
    example={"settings": "share-by-kp", "seeds": "1", "examples": "1"},
)
def method_benchmark(
    settings: Sequence[str] = (),
    *,
    methods: Sequence[str] = (),
    seeds: Count = 8,
    examples: Count = 4,
    progress: Progress = silent,
) -> MethodScores:
    """Score attribution methods on models whose circuits are known.

    Args:
        settings: what to plant, as in "share-by-kp noise=0.01 redundancy=2"; by default the circuits that can share a
            model, without noise. Those that compose scores too are left to `dcinterp planted bench`.
        methods: names of `METHODS`; all by default.
        seeds: models per setting; they differ in which heads play which role, and in the noise.
        examples: prompts per model.
        progress: called after each model.

    Cost: per prompt up to 700 rows of 10 tokens forward for the measured effects (fewer without noise, where most
    edges are zero), and what the methods cost: about a second of one core in all.

    Raises:
        UserError: there is no such circuit, knob or method, or nothing to do.
    """
    if seeds < 1 or examples < 1:
        raise UserError("Give at least one seed and one example.")
    chosen, planted = list(methods) or list(METHODS), list(settings) or list(together())
    for name in chosen:
        if name not in METHODS:
            raise UserError(f"There is no method {name!r}; {nearest(name, METHODS)}")
    for setting in planted:
        circuit = read_plant(setting).circuit
        if "seed=" in setting:
            raise UserError(
                f"{setting!r} names a seed, but the models of a setting have the seeds 0, 1, ...; leave it out."
            )
        if "pre" in Traits.of(circuits()[circuit]).STAGES:
            raise UserError(
                f"{circuit} composes scores, and this benchmark is about composition after the softmax; run "
                f"`dcinterp planted bench --kind {circuit}`."
            )
    tallies: list[dict[tuple[str, str], Tally]] = []
    accuracy = []
    for number, setting in enumerate(planted):
        tally: dict[tuple[str, str], Tally] = {}
        right = []
        for seed in range(seeds):
            model = read_plant(f"{setting} seed={seed}")
            right.append(model.accuracy(model.examples(CHECKED)))
            _score(model, chosen, examples, tally)
            progress(number * seeds + seed + 1, len(planted) * seeds, f"{setting}, model {seed + 1} of {seeds}")
        tallies.append(tally)
        accuracy.append(sum(right) / len(right))
    return _collect(planted, tallies, accuracy, seeds=seeds, examples=examples)


def _score(model: PlantedModel, methods: Sequence[str], examples: int, tally: dict[tuple[str, str], Tally]) -> None:
    """Run every method on some examples of one model, and add the answers to the tally."""
    from dcinterp.bridge import wrap  # with transformer_lens and all: not for the help

    bridge = wrap(model.model, tokenizer(), f"planted {model.circuit}")
    trials = [Trial(bridge, model, example, number) for number, example in enumerate(model.examples(examples, seed=1))]
    generator = torch.Generator().manual_seed(model.seed)
    for method in methods:
        answers = [METHODS[method](trial) for trial in trials]
        for question in answers[0]:
            pairs = [(answer[question], trial.cases[question]) for answer, trial in zip(answers, trials, strict=True)]
            tally.setdefault((method, question), Tally()).add(pairs, generator)


def _collect(
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
