r"""How much every edge of the graph matters to m (see circuit_pairs), by gradients or by patching it alone.

    exact      m(model) - m(model with the edge patched)                         one run for every edge
    eap        (u - other u) . dm/d(input of v), on the prompt                   its first order: Syed et al. 2023
    eap-ig     the same difference, with the gradient averaged over runs whose embedding goes from the counterfactual's
               to the prompt's                                                   Hanna et al. 2024
    eap-ig-activations   the same difference, with the gradient averaged over runs in which what the edge's source (the
               embedding, the heads of a layer, an MLP, the attention of a stage) sends on goes from the other prompt's
               values to the prompt's, all other sources as on the prompt        Hanna et al. 2024, over activations
    gates      dm/dg averaged while the gates of all edges together go from 0 to 1: the sum over all edges is
               m(model) - m(counterfactual), to the error of the integral        integrated gradients of the gates

    gates-relp   the score of "gates"; and a composition edge that matters by removal has at least, in size,
               S max|gates| (1 + |r|) / 2        r = removal / max|removal in this stage|, for |r| >= 0.05; S = 0.02
               removal: <dm/dx, x>, x what the edge adds, in the linearised model (RelP, as in attribute_edges)

"gates" finds what differs between both prompts, and scores an edge that carries the same on both at nothing, however
needed. "gates-relp" puts such edges behind those that differ, and before those that neither differ nor are needed; its
scores of these say no more than this order.

All are signed: positive where the edge raises m. u - other u becomes, for a composition edge, the difference of the two
attention matrices, through the branch's own weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, einsum

from dcinterp.mechanism.circuit_pairs import Pair, PairBatch, batches
from dcinterp.mechanism.circuit_run import CircuitRun, Cut, Probe, Values, in_batches, weighted_mean
from dcinterp.mechanism.linearised import Linearised
from dcinterp.shapes import TokenIds
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, silent

ScoreMethod = Literal["gates-relp", "gates", "eap-ig", "eap-ig-activations", "eap", "exact"]
Contrast = Literal["counterfactual", "mean"]
FROM = {"counterfactual": "the counterfactual prompts", "mean": "their means over the prompts"}
"""Where patched edges get their values, in words."""

REMOVED, NOTHING = 0.02, 0.05
"""S, and the share of the largest below which removal counts as nothing. More of either costs faithfulness: edges that
both prompts share then take the places of edges that differ."""

MOST_NUMBERS = 6_000_000
"""Of one tensor of a run's streams (readers' copies): what bounds the rows of a batch of runs."""


@dataclass(frozen=True)
class Scoring:
    """How edges are scored: the method, what takes the place of a patched edge, and points of an integral."""

    method: str = "gates-relp"
    contrast: str = "counterfactual"
    steps: int = 5


class Others:
    """What patched edges carry, for batches of a set of pairs.

    "counterfactual": the values on each pair's counterfactual prompt. "mean": at every position, their mean over all
    prompts of the set that have this length, each among them, which is no longer a state that some prompt leads to.

    Raises:
        UserError: there is no such contrast, or a prompt is alone in its length, so that it would be its own mean.
    """

    def __init__(self, run: CircuitRun, pairs: Sequence[Pair], contrast: str, batch_size: int = 16) -> None:
        if contrast not in get_args(Contrast):
            raise UserError(f"There is no contrast {contrast!r}; choose 'counterfactual' or 'mean'.")
        self.run, self.means = run, dict[int, Values]()
        self.contrast = contrast
        if contrast == "mean":
            lengths = Counter(pair.ids.shape[1] for pair in pairs)
            if alone := sorted(length for length, count in lengths.items() if count == 1):
                raise UserError(
                    f"A mean over prompts of one length needs two of them, and there is one alone of "
                    f"{', '.join(map(str, alone))} tokens; give more examples, or contrast='counterfactual'."
                )
            parts: dict[int, list[tuple[int, Values]]] = {}
            for batch in batches(pairs, batch_size):
                n, length = batch.ids.shape
                parts.setdefault(length, []).append((n, self._values(batch.ids).mean()))
            self.means = {length: weighted_mean(some) for length, some in parts.items()}

    def of(self, batch: PairBatch) -> Values:
        """The values for every pair of a batch."""
        if self.contrast == "counterfactual":
            return self._values(batch.other)
        return self.means[batch.ids.shape[1]].rows([0] * len(batch.ids))

    @torch.no_grad()
    def _values(self, ids: TokenIds) -> Values:
        return self.run(ids)[1]


def score_edges(
    run: CircuitRun,
    pairs: list[Pair],
    scoring: Scoring,
    *,
    batch_size: int = 16,
    progress: Progress = silent,
) -> Float[Tensor, "example edge"]:
    """The score of every edge for every pair, in logits; float32 on the CPU.

    Cost: "exact": a run for every edge; "gates" and "eap-ig": `steps` runs forward and backward, "gates-relp" one more,
        "eap-ig-activations" as many for every layer's heads, MLP and stages; "eap": one.

    Raises:
        UserError: there is no such method.
    """
    if scoring.method not in METHODS:
        raise UserError(f"There is no method {scoring.method!r}; choose one of {', '.join(METHODS)}.")
    method, done, others = METHODS[scoring.method], 0, Others(run, pairs, scoring.contrast, batch_size)
    scores = torch.zeros(len(pairs), run.graph.size)
    for batch in batches(pairs, batch_size):
        found = method(run, batch, others.of(batch), scoring.steps)
        scores[list(batch.places)] = found.detach().float().cpu()
        done += len(batch.places)
        progress(done, len(pairs), "scoring edges")
    return scores


def _gradient(
    run: CircuitRun,
    batch: PairBatch,
    gates: Tensor,
    cut: Callable[[Tensor], Cut | Probe],
    embedded: Tensor | None = None,
) -> Tensor:
    """dm/d(gates) [row, edge]; the rows are those of the batch, as often as it takes."""
    gates = gates.detach().requires_grad_()
    ids = batch.ids.repeat(len(gates) // len(batch.ids), 1)
    with torch.enable_grad():
        logits, _ = run(ids, cut(gates), embedded=embedded)
        (found,) = torch.autograd.grad(batch.metric(logits).sum(), gates)
    return found


def _eap(run: CircuitRun, batch: PairBatch, other: Values, steps: int) -> Tensor:
    ones = other.written.new_ones(len(batch.ids), run.graph.size)
    return _gradient(run, batch, ones, lambda gates: Cut(gates, other))


def _gates(run: CircuitRun, batch: PairBatch, other: Values, steps: int) -> Tensor:
    total, n = other.written.new_zeros(len(batch.ids), run.graph.size), len(batch.ids)
    for at, weights in _points(run, batch, steps):
        gates = at.to(total).repeat_interleave(n)[:, None].expand(-1, run.graph.size)
        rows = other.rows(list(range(n)) * len(at))
        found = _gradient(run, batch, gates, lambda gates, rows=rows: Cut(gates, rows))  # type: ignore[misc]
        total += einsum("s,sbe->be", weights.to(total), found.unflatten(0, (len(at), n)))
    return total


def _eap_ig_activations(run: CircuitRun, batch: PairBatch, other: Values, steps: int) -> Tensor:
    total, n = other.written.new_zeros(len(batch.ids), run.graph.size), len(batch.ids)
    for own in run.graph.by_source.values():
        for at, weights in _points(run, batch, steps):
            gates = total.new_ones(len(at) * n, run.graph.size)
            gates[:, own] = at.to(total).repeat_interleave(n)[:, None]
            rows = other.rows(list(range(n)) * len(at))
            found = _gradient(run, batch, gates, lambda gates, rows=rows: Cut(gates, rows))  # type: ignore[misc]
            share = einsum("s,sbe->be", weights.to(total), found.unflatten(0, (len(at), n)))
            total[:, own] += share[:, own]
    return total


def _eap_ig(run: CircuitRun, batch: PairBatch, other: Values, steps: int) -> Tensor:
    with torch.no_grad():
        values = run(batch.ids)[1]
    change, start, end, n = values.minus(other), other.written[0], values.written[0], len(batch.ids)
    total = start.new_zeros(n, run.graph.size)
    for at, weights in _points(run, batch, steps):
        rows, share = change.rows(list(range(n)) * len(at)), at.to(total)[:, None, None, None]
        between = (start + share * (end - start)).flatten(0, 1)
        zeros = total.new_zeros(len(at) * n, run.graph.size)
        found = _gradient(run, batch, zeros, lambda gates, rows=rows: Probe(gates, rows), between)  # type: ignore[misc]
        total += einsum("s,sbe->be", weights.to(total), found.unflatten(0, (len(at), n)))
    return total


@torch.no_grad()
def _exact(run: CircuitRun, batch: PairBatch, other: Values, steps: int) -> Tensor:
    n, edges = len(batch.ids), run.graph.size
    whole = batch.metric(run(batch.ids)[0])
    found = other.written.new_zeros(n, edges)
    for some in in_batches(edges, circuits_at_once(run, batch)):
        kept = other.written.new_ones(some.stop - some.start, edges)
        kept[torch.arange(len(kept)), torch.arange(some.start, some.stop)] = 0
        found[:, some] = (whole - run_circuits(run, batch, other, kept)).T
    return found


@torch.no_grad()
def run_circuits(
    run: CircuitRun, batch: PairBatch, other: Values, kept: Float[Tensor, "circuit edge"]
) -> Float[Tensor, "circuit batch"]:
    """m of every pair of a batch with only the edges of each circuit kept, all others patched."""
    n, parts = len(batch.ids), []
    for some in in_batches(len(kept), circuits_at_once(run, batch)):
        gates = kept[some].to(other.written).repeat_interleave(n, 0)
        rows = list(range(n)) * (some.stop - some.start)
        logits, _ = run(batch.ids[rows], Cut(gates, other.rows(rows)))
        parts.append(batch.metric(logits).unflatten(0, (-1, n)))
    return torch.cat(parts)


def circuits_at_once(run: CircuitRun, batch: PairBatch) -> int:
    """How many circuits run side by side, by the memory of the readers' copies of the stream."""
    readers = run.graph.heads + 2 * run.graph.kv_heads + len(run.graph.stages)
    numbers = max(readers, len(run.graph.writers)) * batch.ids.numel() * run.config.hidden_size
    return max(1, MOST_NUMBERS // numbers)


def _points(run: CircuitRun, batch: PairBatch, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Points and weights of Gauss-Legendre quadrature on [0, 1], as many at a time as the memory allows."""
    at, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(steps))
    # A gradient keeps every layer's copies of the stream until it is done.
    for some in in_batches(steps, max(1, circuits_at_once(run, batch) // run.graph.layers)):
        yield (at[some] + 1) / 2, weights[some] / 2


def removal(run: CircuitRun, batch: PairBatch) -> Tensor:
    """What taking each composition edge away does to m, by the slope of the linearised model: one run."""
    with torch.no_grad():
        own = run(batch.ids)[1]
    change = Values(torch.zeros_like(own.written), own.attention)
    zeros = own.written.new_zeros(len(batch.ids), run.graph.size)
    with Linearised():
        return _gradient(run, batch, zeros, lambda gates: Probe(gates, change))


def _gates_relp(run: CircuitRun, batch: PairBatch, other: Values, steps: int) -> Tensor:
    changed, share = _gates(run, batch, other, steps), removal(run, batch)
    # By stage: before the softmax, where slopes are those of saturated rows, RelP promises more than there is.
    for places in filter(None, map(run.graph.of_stage, ("pre", "post"))):
        share[:, places] /= share[:, places].abs().amax(1, keepdim=True).clamp_min(torch.finfo(share.dtype).tiny)
    floor = REMOVED / 2 * changed.abs().amax(1, keepdim=True) * (share.sign() + share)
    return torch.where((share.abs() >= NOTHING) & (floor.abs() > changed.abs()), floor, changed)


METHODS = {
    "gates-relp": _gates_relp,
    "gates": _gates,
    "eap-ig": _eap_ig,
    "eap-ig-activations": _eap_ig_activations,
    "eap": _eap,
    "exact": _exact,
}
