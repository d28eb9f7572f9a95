r"""How much of what the model does its best circuits do, by their size, beside circuits of nodes and random ones.

    f(k) = (m(C_k) - m(none)) / (m(all) - m(none))        m = logit of the answer - that of the counterfactual's answer
    CPR = integral of f from 0 to 1                       CMD = integral of |1 - f| from 0 to 1

C_k keeps the k highest edges as a share of all; every other edge is patched. The measured shares are 0.1, 0.2, 0.5, 1,
2, 5, 10, 20, 50 and 100 %; integrals are by the trapezoid rule on a linear axis, and their first interval goes from 0,
where f is 0 by definition, to 0.1 %. m is a mean over prompts before the ratio is taken.

Edges are ranked on one half of the prompts, and circuits measured on the other half, which shares no facts with it.

Source: the circuit track of the Mechanistic Interpretability Benchmark (Mueller et al. 2025, arXiv 2504.13151). The
halves, the interval and the two baselines' place beside it are ours.

It does not show that a circuit is the only one of its size, nor that it does what the model does on other prompts, or
for another contrast than this one.

Identity that the tests assert: with all edges m is the model's, with none the counterfactual run's; a run with one edge
patched is one with a hook written by hand.

    curve = dcinterp.faithfulness(model, "same-person n=40")
    print(curve.sentence())
    dcinterp.figures.plot(curve)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.circuit_pairs import Counterfactual, ranked_and_measured, read_pairs
from dcinterp.mechanism.circuit_run import CircuitRun
from dcinterp.mechanism.circuit_scores import FROM, Contrast, Others, ScoreMethod, Scoring, score_edges
from dcinterp.mechanism.dataset import Examples
from dcinterp.mechanism.faithfulness import (
    FRACTIONS,
    cmd,
    cpr,
    edges_kept,
    faithfulness_interval,
    faithfulness_of,
    idle_edges,
    keep_top,
    measure_circuits,
    node_ranking,
    random_rankings,
    way_warnings,
)
from dcinterp.mechanism.statistics import count_distinct, few_examples, numbered
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count, Level

RANKINGS = ("edges", "nodes", "random")
NEAR = 0.1
"""A circuit is near the model where |1 - f| is at most this."""


@dataclass(frozen=True)
class FaithfulnessCurve(Result):
    """f of circuits of growing size, for three rankings of the edges.

    rankings: "edges" by the method, "nodes" by the same scores summed over nodes, "random" the mean over random orders.
    fraction, kept [point]: the circuit's share of all edges, and how many these are.
    f, low, high [ranking, point]: with the interval over prompts; cpr, cmd [ranking]; idle [point]: edges of the
    circuit of "edges" that are on no path of its edges from the embedding to the logits.
    metric, patched [example]: m of the model, and with all edges patched; ranked: prompts that edges were ranked on.
    repeats: of every measured prompt the number of its facts, one for those that repeat each other; None in what
    earlier versions saved.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "f": ("ranking", "point"),
        "low": ("ranking", "point"),
        "high": ("ranking", "point"),
        "cpr": ("ranking",),
        "cmd": ("ranking",),
        "fraction": ("point",),
        "kept": ("point",),
        "idle": ("point",),
        "metric": ("example",),
        "patched": ("example",),
    }
    LISTS: ClassVar[dict[str, tuple[str, ...]]] = {"repeats": ("example",)}

    n: int
    ranked: int
    without: int
    method: str
    contrast: str
    order: str
    level: float
    edges: int
    rankings: tuple[str, ...]
    prompts: tuple[str, ...]
    fraction: Float[Tensor, " point"]
    kept: Int[Tensor, " point"]
    idle: Int[Tensor, " point"]
    f: Float[Tensor, "ranking point"]
    low: Float[Tensor, "ranking point"]
    high: Float[Tensor, "ranking point"]
    cpr: Float[Tensor, " ranking"]
    cmd: Float[Tensor, " ranking"]
    metric: Float[Tensor, " example"]
    patched: Float[Tensor, " example"]
    repeats: tuple[int, ...] | None = None

    def labels(self, axis: str) -> list[str] | None:
        return {"ranking": list(self.rankings), "example": list(self.prompts)}.get(axis)

    @property
    def smallest(self) -> int | None:
        """The number of edges of the smallest measured circuit from which on all are near the model; None if none is.

        All but the whole model itself, which is near by definition.
        """
        near = ((1 - self.f[0, :-1]).abs() <= NEAR).tolist()
        found = None
        for size, yes in zip(reversed(self.kept[:-1].tolist()), reversed(near), strict=True):
            if not yes:
                break
            found = size
        return found

    def table(self) -> pd.DataFrame:
        """One row per size: f by ranking, and the interval of "edges"."""
        columns = {f"f ({name})": self.f[i].tolist() for i, name in enumerate(self.rankings)}
        return pd.DataFrame(
            {
                "fraction": self.fraction.tolist(),
                "edges": self.kept.tolist(),
                "idle": self.idle.tolist(),
                **columns,
                "low": self.low[0].tolist(),
                "high": self.high[0].tolist(),
            }
        )

    def sentence(self) -> str:
        near = (
            f"the smallest measured circuit from which on f stays within {NEAR} of 1 has {self.smallest:,} of "
            f"{self.edges:,} edges"
            if self.smallest is not None
            else f"no measured circuit short of the whole model has f within {NEAR} of 1"
        )
        of = dict(zip(self.rankings, zip(self.cmd.tolist(), self.cpr.tolist(), strict=True), strict=True))
        return (
            f"m is the logit of the answer minus that of the counterfactual's answer, and edges outside a circuit are "
            f"patched from {FROM[self.contrast]}. On {self.n} prompts that the edges were not ranked on, CMD is "
            f"{of['edges'][0]:.3f} and CPR {of['edges'][1]:.3f} (by nodes {of['nodes'][0]:.3f} and "
            f"{of['nodes'][1]:.3f}, at random {of['random'][0]:.3f} and {of['random'][1]:.3f}); {near}."
        )

    def warnings(self) -> list[str]:
        sentences = few_examples(self.n, distinct=count_distinct(self.repeats))
        wrong = int((self.metric <= 0).sum())
        if wrong:
            sentences.append(
                f"In {wrong} of {self.n} prompts the model prefers the counterfactual's answer: f is of m all the "
                "same, not of what the model answers."
            )
        sentences += way_warnings(self.metric, self.patched, self.level, self.repeats)
        if self.without:
            sentences.append(f"{self.without} examples have no such counterfactual and are left out.")
        return sentences


@analysis(
    needs_decoder=True,
    title="Faithfulness of circuits",
    question="How small a circuit does what the model does?",
    guide="analyses/circuits.md",
    example={"examples": "task0 n=8", "steps": "2", "draws": "1"},
)
def faithfulness(
    bridge: Bridge,
    examples: Examples,
    *,
    counterfactual: Counterfactual = "any",
    contrast: Contrast = "counterfactual",
    method: ScoreMethod = "gates-relp",
    order: Literal["size", "sign"] = "size",
    draws: Count = 3,
    steps: Count = 5,
    level: Level = 0.95,
    seed: int = 0,
    batch_size: Count = 16,
    progress: Progress = silent,
) -> FaithfulnessCurve:
    """Measure circuits of ten sizes, with edges ranked by a method, by nodes, and at random.

    Args:
        bridge: over a decoder of dcinterp, plain or composed.
        examples, counterfactual, contrast, method, steps: as of `circuit`; edges are ranked on half of the prompts.
        order: by the "size" of scores, so that edges that lower m come in too, or by their "sign", highest first.
        draws: random orders.
        level: confidence level of the intervals over prompts.
        seed: seed of the bootstrap and of the random orders.
        batch_size: prompts of one gradient run; bounds the memory.
        progress: called after each batch.

    Cost: that of `circuit` on half of the prompts; on the other half 20 + 10 * draws runs, each of about two passes.

    Raises:
        UserError: as of `circuit`, or all prompts share their facts, so that they make no two halves.
    """
    run = CircuitRun(bridge)
    pairs, without = read_pairs(bridge, examples, counterfactual)
    ranked, measured = ranked_and_measured(pairs)
    total, ranking_others = len(pairs), Others(run, measured, contrast, batch_size)
    scores = score_edges(
        run,
        ranked,
        Scoring(method, contrast, steps),
        batch_size=batch_size,
        progress=lambda done, _, message="": progress(done, total, message),
    ).mean(0)
    rankings = [scores.abs() if order == "size" else scores, node_ranking(run.graph, scores)]
    rankings += list(random_rankings(run.graph.size, draws, seed))
    kept = torch.cat([keep_top(ranking, FRACTIONS) for ranking in rankings])
    ends = torch.stack([torch.zeros(run.graph.size), torch.ones(run.graph.size)])
    m = measure_circuits(
        run,
        measured,
        ranking_others,
        torch.cat([ends, kept]),
        batch_size=batch_size,
        progress=lambda done, _, message="": progress(len(ranked) + done, total, message),
    )
    none, whole, by_ranking = m[0], m[1], m[2:].unflatten(0, (len(rankings), len(FRACTIONS)))
    curves = [by_ranking[0], by_ranking[1], by_ranking[2:].mean(0)]
    groups = [pair.repeats for pair in measured]
    ends_of = [faithfulness_interval(each, none, whole, level=level, seed=seed, groups=groups) for each in curves]
    f = torch.stack([faithfulness_of(each, none, whole) for each in curves])
    # The areas of a random order, and then their mean: that of the mean curve would be kinder to |1 - f|.
    each_f = faithfulness_of(by_ranking, none, whole).tolist()
    areas = torch.tensor([[area(FRACTIONS, one) for one in each_f] for area in (cpr, cmd)])
    areas = torch.cat([areas[:, :2], areas[:, 2:].mean(1, keepdim=True)], 1)
    return FaithfulnessCurve(
        n=len(measured),
        ranked=len(ranked),
        without=without,
        method=method,
        contrast=contrast,
        order=order,
        level=level,
        edges=run.graph.size,
        rankings=RANKINGS,
        prompts=tuple(pair.prompt for pair in measured),
        fraction=torch.tensor(FRACTIONS),
        kept=torch.tensor([edges_kept(fraction, run.graph.size) for fraction in FRACTIONS]),
        idle=torch.tensor([idle_edges(run.graph, each) for each in kept[: len(FRACTIONS)]]),
        f=f,
        low=torch.stack([low for low, _ in ends_of]),
        high=torch.stack([high for _, high in ends_of]),
        cpr=areas[0],
        cmd=areas[1],
        metric=whole,
        patched=none,
        repeats=numbered(groups),
    )
