r"""How much of what a model does a circuit does, by its size: the definition of the Mechanistic Interpretability
Benchmark (arXiv 2504.13151, section 4).

    f(k) = (m(C_k) - m(none)) / (m(all) - m(none))

C_k are the k highest ranked edges as a share of all; all other edges are patched (circuit_run). m is the mean over
prompts of the logit of the answer minus that of the counterfactual's answer.

    CPR = integral of f from 0 to 1          CMD = integral of |1 - f| from 0 to 1

by the trapezoid rule over the measured shares, on a linear axis. The first interval is from 0, where no edge is kept
and f = 0 by definition, to the smallest measured share. CPR rewards circuits that do more than the model; CMD is the
area between the curve and 1, and 0 is perfect.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dcinterp.mechanism.circuit_graph import CircuitGraph
from dcinterp.mechanism.circuit_pairs import Pair, batches
from dcinterp.mechanism.circuit_run import CircuitRun
from dcinterp.mechanism.circuit_scores import Others, run_circuits
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.support.progress import Progress, silent

FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Of the edges, as in the benchmark."""

NO_WAY = (
    "m is no larger in the model than with all edges patched, so that f says nothing: choose another contrast, or "
    "prompts that the model answers."
)
"""A warning on f, whose denominator is that difference."""
LITTLE_WAY = (
    "The interval over these prompts of the difference of m between the model and all edges patched includes zero, so "
    "that f, which divides by it, may be quite another on other prompts: give more of them, another contrast, or "
    "prompts that the model answers."
)
"""The same where the interval of the difference includes zero."""


def way_warnings(
    metric: Float[Tensor, " example"],
    patched: Float[Tensor, " example"],
    level: float,
    repeats: Sequence[Hashable] | None = None,
) -> list[str]:
    """What to say of f where its denominator, the mean of `metric - patched` over prompts, is none or may be none.

    repeats: of every prompt, the same for those that repeat each other; None where it is not known.
    """
    span = (metric - patched).double()
    if not float(span.mean()) > 0:
        return [NO_WAY]
    low = float(bootstrap_interval(span, level=level, groups=repeats)[0])
    unknown = low != low and len(span) > 1  # prompts that all repeat each other; of one there is a warning of its own
    return [LITTLE_WAY] if low <= 0 or unknown else []


def edges_kept(fraction: float, edges: int) -> int:
    """How many edges a share of all is; at least one."""
    return max(1, round(fraction * edges))


def keep_top(ranking: Float[Tensor, " edge"], fractions: Sequence[float]) -> Float[Tensor, "circuit edge"]:
    """The circuits of these shares of the edges: 1 for the highest ranked, 0 for the others."""
    order = ranking.argsort(descending=True, stable=True)
    kept = torch.zeros(len(fractions), len(ranking))
    for row, fraction in zip(kept, fractions, strict=True):
        row[order[: edges_kept(fraction, len(ranking))]] = 1
    return kept


def measure_circuits(
    run: CircuitRun,
    pairs: Sequence[Pair],
    others: Others,
    kept: Float[Tensor, "circuit edge"],
    *,
    batch_size: int = 16,
    progress: Progress = silent,
) -> Float[Tensor, "circuit example"]:
    """m of every pair with only the edges of each circuit kept; float32 on the CPU.

    Cost: a run of every prompt for every circuit, each of about two forward passes.
    """
    found, done = torch.zeros(len(kept), len(pairs)), 0
    for batch in batches(pairs, batch_size):
        found[:, list(batch.places)] = run_circuits(run, batch, others.of(batch), kept).float().cpu()
        done += len(batch.places)
        progress(done, len(pairs), "running circuits")
    return found


def faithfulness_of(
    kept: Float[Tensor, "circuit example"], none: Float[Tensor, " example"], whole: Float[Tensor, " example"]
) -> Float[Tensor, " circuit"]:
    """f of circuits, from m with their edges kept, with none and with all."""
    return (kept.mean(-1) - none.mean()) / (whole.mean() - none.mean())


def faithfulness_interval(
    kept: Float[Tensor, "circuit example"],
    none: Float[Tensor, " example"],
    whole: Float[Tensor, " example"],
    *,
    level: float,
    seed: int,
    groups: Sequence[Hashable],
) -> tuple[Float[Tensor, " circuit"], Float[Tensor, " circuit"]]:
    """The interval of f over prompts: of a ratio of means, to first order in how far both are from theirs.

    f + (m(C) - m(none) - f (m(all) - m(none))) / (mean of the latter), one number a prompt, has f as its mean, and
    the interval is that of this mean (`bootstrap_interval`).
    """
    f, span = faithfulness_of(kept, none, whole), whole - none
    values = f[:, None] + (kept - none - f[:, None] * span) / span.mean()
    low, high = bootstrap_interval(values.T, level=level, seed=seed, groups=groups)
    return low.float(), high.float()


def area(fractions: Sequence[float], values: Sequence[float], at_zero: float) -> float:
    """The trapezoid rule from 0, where the value is `at_zero`."""
    xs, ys = [0.0, *fractions], [at_zero, *values]
    return sum((xs[i + 1] - xs[i]) * (ys[i] + ys[i + 1]) / 2 for i in range(len(fractions)))


def cpr(fractions: Sequence[float], f: Sequence[float]) -> float:
    """The integral of f."""
    return area(fractions, f, 0.0)


def cmd(fractions: Sequence[float], f: Sequence[float]) -> float:
    """The integral of |1 - f|."""
    return area(fractions, [abs(1 - value) for value in f], 1.0)


def node_ranking(graph: CircuitGraph, scores: Float[Tensor, " edge"]) -> Float[Tensor, " edge"]:
    """The ranking of edges by nodes alone: an edge comes as high as the lower of the two nodes that it joins.

    The score of a node is the size of the sum of what leaves it; of dynamic weights, which no edge leaves, of what
    enters. A circuit of the k highest edges then has nearly all edges among its nodes.
    """
    leaving: dict[str, float] = {}
    entering: dict[str, float] = {}
    for edge, score in zip(graph.edges, scores.tolist(), strict=True):
        source, target = edge.nodes
        leaving[source] = leaving.get(source, 0.0) + score
        entering[target] = entering.get(target, 0.0) + score
    size = {node: abs(value) for node, value in (entering | leaving).items()}
    size["logits"] = float("inf")

    # The q of a head belongs to it, and k and v to all heads that share them.
    serves: dict[str, list[str]] = {}
    for before, after in graph.inner_edges:
        if before[-2:] in (".q", ".k", ".v"):
            serves.setdefault(before, []).append(after.partition(" ")[0])

    def of(node: str) -> float:
        return max((size.get(head, size[node]) for head in serves.get(node, ())), default=size[node])

    return torch.tensor([min(size[a], of(b)) for a, b in (edge.nodes for edge in graph.edges)])


def random_rankings(edges: int, draws: int, seed: int) -> Float[Tensor, "draw edge"]:
    """Edges in random order, so many times."""
    return torch.rand(draws, edges, generator=torch.Generator().manual_seed(seed))


def idle_edges(graph: CircuitGraph, kept: Float[Tensor, " edge"]) -> int:
    """How many kept edges lie on no path of kept edges from the embedding to the logits: they change nothing."""
    chosen: Bool[Tensor, " edge"] = kept.bool()
    return int(chosen.sum() - graph.connected(chosen).sum())
