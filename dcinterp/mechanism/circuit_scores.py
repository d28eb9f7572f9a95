r"""How much every edge of the graph matters to m (see circuit_pairs), by gradients or by patching it alone.

    exact      m(model) - m(model with the edge patched)                         one run for every edge
    eap        (u - other u) . dm/d(input of v), on the prompt                   its first order: Syed et al. 2023
    eap-ig     the same difference, with the gradient averaged over runs whose embedding goes from the counterfactual's
               to the prompt's                                                   Hanna et al. 2024
    gates      dm/dg averaged while the gates of all edges together go from 0 to 1: the sum over all edges is
               m(model) - m(counterfactual), to the error of the integral        integrated gradients of the gates

All are signed: positive where the edge raises m. u - other u becomes, for a composition edge, the difference of the two
attention matrices, through the branch's own weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.mechanism.circuit_pairs import Pair, PairBatch, batches
from dcinterp.mechanism.circuit_run import CircuitRun, Cut, Probe, Values, in_batches
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, silent

ScoreMethod = Literal["gates", "eap-ig", "eap", "exact"]
Contrast = Literal["counterfactual", "mean"]
MOST_NUMBERS = 6_000_000
"""Of one tensor of a run's streams (readers' copies): what bounds the rows of a batch of runs."""


@dataclass(frozen=True)
class Scoring:
    """How edges are scored: the method, what takes the place of a patched edge, and points of an integral."""

    method: str = "gates"
    contrast: str = "counterfactual"
    steps: int = 8


def other_values(run: CircuitRun, batch: PairBatch, contrast: str) -> Values:
    """What patched edges carry: the values on the counterfactual prompts, or their means over the batch's prompts."""
    with torch.no_grad():
        if contrast == "counterfactual":
            return run(batch.other)[1]
        return run(batch.ids)[1].mean().rows([0] * len(batch.ids))


def score_edges(
    run: CircuitRun,
    pairs: list[Pair],
    scoring: Scoring,
    *,
    batch_size: int = 16,
    progress: Progress = silent,
) -> Float[Tensor, "example edge"]:
    """The score of every edge for every pair, in logits; float32 on the CPU.

    Cost: "exact": a run for every edge; "gates" and "eap-ig": `steps` runs forward and backward; "eap": one.

    Raises:
        UserError: there is no such method.
    """
    if scoring.method not in METHODS:
        raise UserError(f"There is no method {scoring.method!r}; choose one of {', '.join(METHODS)}.")
    method, done = METHODS[scoring.method], 0
    scores = torch.zeros(len(pairs), run.graph.size)
    for batch in batches(pairs, batch_size):
        found = method(run, batch, other_values(run, batch, scoring.contrast), scoring.steps)
        scores[list(batch.places)] = found.detach().float().cpu()
        done += len(batch.places)
        progress(done, len(pairs), "scoring edges")
    return scores


def _gradient(
    run: CircuitRun, batch: PairBatch, gates: Tensor, cut: Callable[[Tensor], Cut | Probe], embedded: Tensor | None
) -> Tensor:
    """dm/d(gates) [batch, edge]."""
    gates = gates.detach().requires_grad_()
    with torch.enable_grad():
        logits, _ = run(batch.ids, cut(gates), embedded=embedded)
        (found,) = torch.autograd.grad(batch.metric(logits).sum(), gates)
    return found


def _eap(run: CircuitRun, batch: PairBatch, other: Values, steps: int) -> Tensor:
    ones = other.written.new_ones(len(batch.ids), run.graph.size)
    return _gradient(run, batch, ones, lambda gates: Cut(gates, other), None)


def _gates(run: CircuitRun, batch: PairBatch, other: Values, steps: int) -> Tensor:
    ones = other.written.new_ones(len(batch.ids), run.graph.size)
    total = torch.zeros_like(ones)
    for at, weight in _points(steps):
        total += weight * _gradient(run, batch, at * ones, lambda gates: Cut(gates, other), None)
    return total


def _eap_ig(run: CircuitRun, batch: PairBatch, other: Values, steps: int) -> Tensor:
    with torch.no_grad():
        values = run(batch.ids)[1]
    change, start, end = values.minus(other), other.written[0], values.written[0]
    zeros = start.new_zeros(len(batch.ids), run.graph.size)
    total = torch.zeros_like(zeros)
    for at, weight in _points(steps):
        total += weight * _gradient(run, batch, zeros, lambda gates: Probe(gates, change), start + at * (end - start))
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
    return run_logits(run, batch, other, kept, lambda logits: batch.metric(logits))


@torch.no_grad()
def run_logits(
    run: CircuitRun,
    batch: PairBatch,
    other: Values,
    kept: Float[Tensor, "circuit edge"],
    read: Callable[[Tensor], Tensor],
) -> Float[Tensor, "circuit batch"]:
    """A number of the logits [batch, vocab] of every run of `run_circuits`."""
    n, parts = len(batch.ids), []
    for some in in_batches(len(kept), circuits_at_once(run, batch)):
        gates = kept[some].to(other.written).repeat_interleave(n, 0)
        rows = list(range(n)) * (some.stop - some.start)
        logits, _ = run(batch.ids[rows], Cut(gates, other.rows(rows)))
        parts.append(read(logits).unflatten(0, (-1, n)))
    return torch.cat(parts)


def circuits_at_once(run: CircuitRun, batch: PairBatch) -> int:
    """How many circuits run side by side, by the memory of the readers' copies of the stream."""
    readers = run.graph.heads + 2 * run.graph.kv_heads + len(run.graph.stages)
    numbers = max(readers, len(run.graph.writers)) * batch.ids.numel() * run.config.hidden_size
    return max(1, MOST_NUMBERS // numbers)


def _points(steps: int) -> list[tuple[float, float]]:
    """Points and weights of Gauss-Legendre quadrature on [0, 1]."""
    at, weights = np.polynomial.legendre.leggauss(steps)
    return [((float(a) + 1) / 2, float(w) / 2) for a, w in zip(at, weights, strict=True)]


METHODS = {"gates": _gates, "eap-ig": _eap_ig, "eap": _eap, "exact": _exact}
