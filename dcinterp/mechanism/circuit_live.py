"""A set of prompts held ready, so that one circuit after another is run on them without delay.

live = LiveCircuit(bridge, pairs)
live.answer(kept).metric                # m of every pair with these edges alone
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.circuit_pairs import Pair, batches
from dcinterp.mechanism.circuit_run import CircuitRun, Cut
from dcinterp.mechanism.circuit_scores import Others

TOP = 5
"""Tokens that are kept of every run's answer."""


@dataclass(frozen=True)
class Answers:
    """What a run answers: m, and the most likely next tokens with their probabilities."""

    metric: Float[Tensor, " example"]
    top_ids: Int[Tensor, "example k"]
    top_probability: Float[Tensor, "example k"]


class LiveCircuit:
    """Runs of circuits on a set of pairs; what patched edges carry, and the runs of the two ends, are computed once.

    Args:
        bridge: over a decoder of ours; its weights must stay as they are.
        pairs: the prompts with their counterfactuals.
        contrast: where patched edges get their values (see dcinterp.mechanism.circuit_scores).
        batch_size: prompts of one run.

    Cost: three passes of all prompts; then of every circuit about two.

    Raises:
        UserError: the model is not a decoder of ours.
    """

    def __init__(
        self, bridge: Bridge, pairs: Sequence[Pair], contrast: str = "counterfactual", batch_size: int = 16
    ) -> None:
        self.run, self.pairs = CircuitRun(bridge), tuple(pairs)
        others = Others(self.run, pairs, contrast, batch_size)
        self.batches = [(batch, others.of(batch)) for batch in batches(pairs, batch_size)]
        edges = self.run.graph.size
        self.model = self.answer(torch.ones(edges, dtype=torch.bool))
        self.none = self.answer(torch.zeros(edges, dtype=torch.bool))

    @torch.no_grad()
    def answer(self, kept: Bool[Tensor, " edge"]) -> Answers:
        """What the model answers with only these edges kept, all others patched."""
        n = len(self.pairs)
        metric = torch.zeros(n)
        ids, probability = torch.zeros(n, TOP, dtype=torch.long), torch.zeros(n, TOP)
        for batch, other in self.batches:
            gates = kept.to(other.written).expand(len(batch.places), -1)
            logits, _ = self.run(batch.ids, Cut(gates, other))
            places = list(batch.places)
            metric[places] = batch.metric(logits).float().cpu()
            top = logits.float().softmax(-1).topk(TOP)
            ids[places], probability[places] = top.indices.cpu(), top.values.cpu()
        return Answers(metric, ids, probability)
