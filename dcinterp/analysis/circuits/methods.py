"""The attribution methods that `method_benchmark` compares, and one example of a planted model.

    edge IG           attribute_edges by integrated gradients              edges, and so heads and branches
    ..., joint path   the same, both layers on one path
    edge gradient     attribute_edges by gradient x edge                   the same
    head IG           attribute_heads by integrated gradients              heads
    head gradient     attribute_heads by gradient x activation             heads
    attention weight  how much the last position attends past the first    edges by |A C|, heads by A and by A'
    ablation          removing each part, one at a time                    everything: it is what the others predict
    random            independent normal numbers                           everything

A method is one function and one line in `METHODS`. The questions, and what the numbers mean, are described in
`method_benchmark`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dcinterp.analysis.attribution.attribute_edges import attribute_edges
from dcinterp.analysis.attribution.attribute_heads import attribute_heads
from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.method_tally import QUESTIONS, Answer, Case
from dcinterp.planted import PlantedExample, PlantedModel
from dcinterp.planted.effects import all_edges, effects
from dcinterp.planted.words import TOKEN_ID


@dataclass(frozen=True)
class Trial:
    """One example of one planted model, with everything that several methods use."""

    bridge: Bridge
    planted: PlantedModel
    example: PlantedExample
    number: int

    @cached_property
    def ids(self) -> Tensor:
        """The prompt, [1, pos]."""
        return torch.tensor([[TOKEN_ID[word] for word in self.example.prompt.split()]])

    @cached_property
    def edges(self) -> Tensor:
        """Every edge written out, [layer, branch, head_from, head_to, query, key]."""
        return torch.stack(all_edges(self.bridge, self.ids))

    @cached_property
    def exists(self) -> Tensor:
        """[layer, branch, head_from, head_to]: whether there can be such an edge; gates and the skip mix no heads."""
        layers, branches, heads = self.edges.shape[:3]
        own, any_pair = torch.eye(heads, dtype=torch.bool), torch.ones(heads, heads, dtype=torch.bool)
        # In the order of BRANCHES: o_b, o_qp, o_kp, o_qg, o_kg.
        return torch.stack([own, any_pair, any_pair, own, own]).expand(layers, branches, heads, heads)

    def metric(self, logits: Tensor) -> Tensor:
        """Logit of the target minus that of the foil at the last position, [batch]."""
        return logits[:, -1, TOKEN_ID[self.example.target]] - logits[:, -1, TOKEN_ID[self.example.foil]]

    @cached_property
    def measured(self) -> dict[str, Tensor]:
        """The effect of removing each part, by question."""
        found: dict[str, list[Tensor]] = {question: [] for question in QUESTIONS}
        for layer, edges in enumerate(self.edges):
            heads = torch.arange(edges.shape[1])
            single = torch.zeros(*edges.shape[:3], *edges.shape[2:])
            single[:, :, heads, heads] = edges
            output = torch.zeros(len(heads), *edges.shape[2:])
            output[heads, heads] = edges.sum((0, 1))
            parts = {
                "edges": single[self.exists[layer]],
                "attention": edges.sum(0),
                "output": output,
                "branches": edges.sum(1),
            }
            for question, each in parts.items():
                found[question].append(effects(self.bridge, self.ids, self.metric, layer, each))
        return {question: torch.cat(each) for question, each in found.items()}

    @cached_property
    def cases(self) -> dict[str, Case]:
        """Labels and measured effects, by question."""
        truth = self.planted.truth(self.example)
        labels = {
            "edges": truth.edges[self.exists] != 0,
            "attention": truth.attention.flatten(),
            "output": truth.output.flatten() != 0,
            "branches": truth.branches.flatten(),
        }
        return {question: Case(labels[question], self.measured[question]) for question in QUESTIONS}

    def by_edges(self, scores: Tensor) -> dict[str, Answer]:
        """Answers of a method that scores edges [layer, branch, head_from, head_to]: sums for heads and branches.

        A head's attention or a branch belongs to the circuit by how much goes through it, whatever the signs.
        """
        net = {
            "edges": scores[self.exists],
            "attention": scores.sum((1, 3)),
            "output": scores.sum((1, 2)),
            "branches": scores.sum((2, 3)),
        }
        amount = {"attention": scores.abs().sum((1, 3)), "branches": scores.abs().sum((2, 3))}
        return {q: Answer(amount.get(q, net[q].abs()).flatten(), net[q].flatten()) for q in QUESTIONS}


Method = Callable[[Trial], dict[str, Answer]]
"""From a trial to its answers, by question."""


def _edge_method(**options: Any) -> Method:
    def ask(trial: Trial) -> dict[str, Answer]:
        e = trial.example
        found = attribute_edges(trial.bridge, e.prompt, e.target, e.foil, per_source=False, check=0, **options)
        return trial.by_edges(found.scores)

    return ask


def _head_method(**options: Any) -> Method:
    def ask(trial: Trial) -> dict[str, Answer]:
        e = trial.example
        found = attribute_heads(trial.bridge, e.prompt, e.target, e.foil, **options)
        scores = found.scores.flatten()
        return {question: Answer(scores.abs(), scores) for question in ("attention", "output")}

    return ask


def _attention_weight(trial: Trial) -> dict[str, Answer]:
    # What the last position attends to, except the first token, to which idle heads attend.
    seen = trial.edges[..., -1, 1:]
    answers = trial.by_edges(seen.abs().sum(-1))
    own = seen[:, 0].sum(-1).sum(-1)
    composed = seen.sum((1, 2))
    answers["attention"] = Answer(own.flatten(), own.flatten())
    answers["output"] = Answer(composed.abs().sum(-1).flatten(), composed.sum(-1).flatten())
    return answers


def _ablation(trial: Trial) -> dict[str, Answer]:
    return {question: Answer(effect.abs(), effect) for question, effect in trial.measured.items()}


def _random(trial: Trial) -> dict[str, Answer]:
    generator = torch.Generator().manual_seed(1000 * trial.planted.seed + trial.number)
    drawn = {q: torch.randn(len(case.labels), generator=generator) for q, case in trial.cases.items()}
    return {question: Answer(numbers.abs(), numbers) for question, numbers in drawn.items()}


METHODS: Mapping[str, Method] = {
    "edge IG": _edge_method(method="ig"),
    "edge IG, joint path": _edge_method(method="ig", path="joint"),
    "edge gradient": _edge_method(method="gradient"),
    "head IG": _head_method(method="ig"),
    "head gradient": _head_method(method="gradient"),
    "attention weight": _attention_weight,
    "ablation": _ablation,
    "random": _random,
}
"""Each answers the questions that it can; a new method is one function and one line here."""
