r"""How much every head contributes to an answer, by integrated gradients on the heads' outputs.

    score[l, h] = sum over pos, d_head of (z - b) * integral_0^1 df/dz(b + a (z - b)) da

z is `blocks.l.attn.hook_z` (what each head reads, before W_O), b its baseline, and f the metric: the logit of the
target, its difference from the foil's, or the log-probability of the answer (see dcinterp.mechanism.objective). Two
paths from b to z:

    path="layer"   the heads of one layer move together, layer by layer; everything behind them is computed from what
                   arrives, later heads included. The scores of layer l add up to f(z) - f(b_l): the layer's whole
                   effect. So scores of different layers overlap.
    path="joint"   the heads of all layers move together. Every head's output is set, so no head answers another: a
                   score is what the head does through the residual stream, the MLPs and the unembedding. The scores
                   of all layers add up to one difference, f(z) - f(all heads at b).

The baseline b is zero, the mean output of each head over a reference set, or its output on a counterfactual prompt.
Source: Sundararajan et al. 2017, applied to head outputs as in the DCMHA paper (appendix "Interpretation and
Visualization"), which does not say which of the two paths it takes.

It does not show why a head matters. An attribution is not an intervention either: `ablation` says what happens to f if
that head alone is set to its baseline, and a warning says where the two disagree, in sign or by more than a factor of
three (see dcinterp.mechanism.magnitude_check).

Identity that the tests assert: on each path the scores add up to f(z) - f(b), up to `gap`, which is returned.

    scores = dcinterp.attribute_heads(model, "< Ruth has a violin. ...", "fruit", "animal")
    scores.best                  # (layer, head) of the largest score
    scores.gap                   # what the integral misses, per layer
    dcinterp.figures.plot(scores)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pandas as pd
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.dataset import prompts
from dcinterp.mechanism.head_scores import head_scores, mean_outputs, outputs
from dcinterp.mechanism.magnitude_check import magnitude_warnings
from dcinterp.mechanism.objective import UNITS, Objective, explain, other_answer
from dcinterp.mechanism.path_gradient import Integration, Method, Path, remedy, share_missed
from dcinterp.mechanism.prompt import Prompt, Token, str_tokens
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result
from dcinterp.support.arguments import require_fitting
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count, Number, Tolerance

NOTABLE = 0.1
"""Scores above this share of the largest are compared in sign with their ablation."""


class HeadScore(NamedTuple):
    """One head and its score."""

    layer: int
    head: int
    score: float

    @property
    def label(self) -> str:
        """How figures name the head: L1H6."""
        return f"L{self.layer}H{self.head}"


@dataclass(frozen=True)
class HeadAttribution(Result):
    """Scores of all heads, in units of the metric (logits, or nats for log-probabilities).

    position: of the token that is explained; of several, the last.
    scores [layer, head]; by_position [layer, head, pos], what each position contributes to them;
    ablation [layer, head] = f(z) - f(that head alone at its baseline), measured;
    gap [layer] = f(z) - f(b) - sum of the scores on the path; metric_at_baseline [layer] = f(b); steps [layer]: points
    at which the path was evaluated. The joint path has one gap, baseline and number of steps, which all layers repeat.
    metric = f(z); answer: the model's own most likely token (or tokens) in the place of the target.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "scores": ("layer", "head"),
        "by_position": ("layer", "head", "pos"),
        "ablation": ("layer", "head"),
        "gap": ("layer",),
        "metric_at_baseline": ("layer",),
        "steps": ("layer",),
    }

    tokens: tuple[str, ...]
    position: int
    target: str
    foil: str
    answer: str
    right: bool
    objective: str
    path: str
    baseline: str
    method: str
    tolerance: float
    metric: float
    scores: Float[Tensor, "layer head"]
    by_position: Float[Tensor, "layer head pos"]
    ablation: Float[Tensor, "layer head"]
    gap: Float[Tensor, " layer"]
    metric_at_baseline: Float[Tensor, " layer"]
    steps: Int[Tensor, " layer"]

    @property
    def best(self) -> tuple[int, int]:
        """(layer, head) of the largest score."""
        layer, head = divmod(int(self.scores.argmax()), self.scores.shape[1])
        return layer, head

    def top(self, k: int = 10) -> list[HeadScore]:
        """The `k` heads of largest |score|, strongest first.

        Raises:
            UserError: `k` is no whole number of at least 0.
        """
        require_fitting("k", k, Number)
        order = self.scores.abs().flatten().argsort(descending=True, stable=True)[:k].tolist()
        places = (divmod(number, self.scores.shape[1]) for number in order)
        return [HeadScore(layer, head, float(self.scores[layer, head])) for layer, head in places]

    @property
    def relative_gap(self) -> Float[Tensor, " layer"]:
        """|gap| as a share of the metric difference |f(z) - f(b)| of the path."""
        return self.gap.abs() / (self.metric - self.metric_at_baseline).abs().clamp(min=1e-9)

    @property
    def gap_share(self) -> Float[Tensor, " layer"]:
        """|gap| as a share of |f(z) - f(b)|, or of a tenth of the largest one if that is more: what is warned of."""
        return share_missed(self.gap, self.metric - self.metric_at_baseline)

    @property
    def disagreements(self) -> list[tuple[int, int]]:
        """(layer, head) of notable scores whose ablation has the other sign."""
        notable = self.scores.abs() >= NOTABLE * self.scores.abs().max()
        opposite = notable & (self.scores.sign() * self.ablation.sign() < 0)
        return [(int(layer), int(head)) for layer, head in opposite.nonzero()]

    def labels(self, axis: str) -> list[str] | None:
        return list(self.tokens) if axis == "pos" else None

    def warnings(self) -> list[str]:
        sentences = []
        if said := other_answer(self.answer, self.target, self.right):
            sentences.append(f"The model {said}: the scores explain an answer that it does not give.")
        if len(incomplete := [int(i) for i in (self.gap_share > self.tolerance).nonzero()[:, 0]]):
            layers_named = f"layer{'s' * (len(incomplete) > 1)} {', '.join(map(str, incomplete))}"
            joint = self.path == "joint"
            where = "all layers" if joint else layers_named
            sentences.append(
                f"The scores of {where} miss up to {float(self.gap_share.max()):.0%} of the metric difference"
                f"{'' if joint else ' (of a tenth of the largest, where that of a layer is less)'}: "
                + remedy(self.method)
            )
        if self.disagreements:
            heads = ", ".join(f"L{layer}H{head}" for layer, head in self.disagreements)
            those = "these scores" if len(self.disagreements) > 1 else "this score"
            why = " (on the joint path no head answers another)" if self.path == "joint" else ""
            sentences.append(f"Attribution and ablation disagree in sign for {heads}{why}: do not rely on {those}.")
        layers, heads_of_a_layer = self.scores.shape
        names = [f"L{layer}H{head}" for layer in range(layers) for head in range(heads_of_a_layer)]
        return sentences + magnitude_warnings(
            names,
            self.scores,
            self.ablation,
            method=self.path if self.path == "joint" else self.method,
            unit=UNITS[self.objective],
        )

    def table(self) -> pd.DataFrame:
        """One row a head, the largest scores first."""
        layers, heads = self.scores.shape
        index = [(layer, head) for layer in range(layers) for head in range(heads)]
        frame = pd.DataFrame(index, columns=["layer", "head"])
        for name in ("scores", "ablation"):
            frame[name] = getattr(self, name).flatten().tolist()
        frame["gap of the layer"] = [float(self.gap[layer]) for layer, _ in index]
        return frame.sort_values("scores", key=abs, ascending=False, ignore_index=True)


@analysis(
    title="Head attribution",
    question="Which heads contribute to the answer?",
    guide="analyses/head-attribution.md",
    example={"prompt": EXAMPLE_PROMPT, "target": "tea", "foil": "meat"},
    ignore=("means",),
)
def attribute_heads(
    bridge: Bridge,
    prompt: Prompt,
    target: Token,
    foil: Token | None = None,
    *,
    at: int = -1,
    objective: Objective = "logit",
    method: Method = "ig",
    path: Path = "layer",
    baseline: Prompt | None = None,
    reference: str | Sequence[Prompt] | None = None,
    means: Mapping[str, Tensor] | None = None,
    steps: Count = 16,
    max_steps: Count = 512,
    tolerance: Tolerance = 0.01,
    batch_size: Count = 64,
    progress: Progress = silent,
) -> HeadAttribution:
    """Attribute the logit of `target` (minus that of `foil`, if given) to every head of every layer.

    Args:
        bridge: any TransformerLens bridge; its heads need not be composed.
        prompt: text, or token ids as in [5, 7, 9].
        target: the answer; if it takes several tokens, they are explained together, each after the ones before.
        foil: the answer it competes with, at the first token where the two differ.
        at: the position whose next-token logits are explained.
        objective: "logit", or "log-probability" of the answer (against a foil the two are the same).
        method: "ig" integrates from the baseline to z; "gradient" is (z - b) * df/dz at z, the one-step approximation.
        path: "layer" moves the heads of one layer at a time, "joint" those of all layers at once.
        baseline: a counterfactual prompt with as many tokens, whose head outputs are b.
        reference: prompts, or a set of examples such as "same-person n=20", whose mean head outputs are b. Without
            this and `baseline`, b is zero.
        means: the mean head outputs of `reference` by hook, where they are known already.
        steps: Gauss-Legendre points per path to start with; half as many in models of more than 12 layers.
        max_steps: points are added until the gap is below `tolerance`, but not beyond this.
        tolerance: acceptable |gap| as a share of the layer's metric difference, or of a tenth of the largest layer's
            where that is more.
        batch_size: points evaluated in one forward and backward pass; bounds the memory.
        progress: called with what the work takes before it begins, and after every batch of layers.

    Cost: two forwards for z and the check that runs may start at a layer; rows through the layers from its own on: one
    per head for the ablations, one per path for the baselines and, per path, steps + 2 forward and backward.
    Memory: that of a backward pass of batch_size rows, and one gradient per layer on the path.

    Raises:
        UserError: prompt, target, foil or position do not fit the model, the baseline has another length, both
            baselines are given, or a choice is unknown.
    """
    if baseline is not None and reference is not None:
        raise UserError("Give a counterfactual baseline or a reference set for a mean baseline, not both.")
    if isinstance(baseline, str) and baseline in ("mean", "zero"):
        raise UserError(
            f"baseline is a counterfactual prompt, and {baseline!r} is none; for the mean give prompts as reference=, "
            "and for zero leave both out."
        )
    if means is not None and reference is None:
        raise UserError("means= are those of a reference set; give the set as reference= too.")
    explanation = explain(bridge, prompt, target, foil, at=at, objective=objective)
    starts = None
    if baseline is not None:
        starts = outputs(bridge, explanation.baseline(bridge, baseline))[1]
    elif reference is not None:
        starts = dict(means) if means is not None else mean_outputs(bridge, prompts(bridge, reference))
    integration = Integration(steps, max_steps, tolerance, batch_size)
    scores = head_scores(
        bridge, explanation, starts, path=path, method=method, integration=integration, progress=progress
    )
    return HeadAttribution(
        tokens=str_tokens(bridge, explanation.ids),
        position=explanation.positions[-1],
        target=explanation.target,
        foil=explanation.foil,
        answer=scores.answer,
        right=scores.right,
        objective=objective,
        path=path,
        baseline="counterfactual" if baseline is not None else "mean" if reference is not None else "zero",
        method=method,
        tolerance=tolerance,
        metric=scores.metric,
        scores=scores.by_position.sum(-1),
        by_position=scores.by_position,
        ablation=scores.ablation,
        gap=scores.gap,
        metric_at_baseline=scores.at_baseline,
        steps=scores.steps,
    )
