r"""How well every rule predicts what removing an edge does: each edge of a prompt is removed, alone, and compared.

    correlation   of predicted and measured effects, over the edges of one prompt; rank correlation: Spearman's
    error         sum |predicted - measured| / sum |measured|           (1: as good as predicting no effect)
    median        of |predicted - measured| / |measured|, over edges with at least 1 % of the prompt's largest effect
    found         whether the edge of largest measured effect is among those that `attribute_edges` would measure: the
                  `check` strongest of the rule; for "screened" the union of several rankings

each over all edges and over the edges between two heads. "screened" has the measured effects of the edges that it
names and the rule "recomputed" for the others; "rest" says how well that rule does on these others.

A measurement is resumable: rows of a file that are there already are not made again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from dcinterp.bench.row_file import add_row, appended, resume_rows
from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.dataset import Question, counterfactual_prompts, read_questions
from dcinterp.mechanism.edge_benchmark import PLANTED, TRAINED
from dcinterp.mechanism.edge_removal import removal_effects
from dcinterp.mechanism.edge_rules import RULES, EdgeQuestion
from dcinterp.mechanism.edge_scores import PREDICTOR, SCREEN, place, union_of_rankings
from dcinterp.mechanism.interventions import all_units
from dcinterp.mechanism.objective import explain
from dcinterp.mechanism.path_gradient import Integration
from dcinterp.mechanism.prompt import token_ids

FAMILIES = ("different-in-set", "same-person", "the-other-person", "same-object", "the-other-object")
VARIANTS = ("", " noise=0.01", " redundancy=2", " rank=3", " circuits=4")
SEEDS, EXAMPLES = 5, 4
"""Planted models of each variant, and prompts of each model: with five variants, 100 prompts of every circuit."""

CHECK = 8
"""What `attribute_edges` checks by default."""
NOTABLE = 0.01
SCOPES = ("all", "shared")


@dataclass(frozen=True)
class Case:
    """One prompt of one family, with everything that a row needs; `counterfactual` is None where there is none."""

    family: str
    number: int
    bridge: Bridge
    prompt: Any
    target: Any
    foil: Any
    counterfactual: Any = None

    def key(self, stage: str) -> str:
        return f"{self.family} {self.number} {stage}"


def trained_cases(bridge: Bridge, family: str, n: int, seed: int = 0) -> Iterator[Case]:
    """Prompts of one family of tasks on a trained model."""
    questions: list[Question] = read_questions(bridge, f"{family} n={n} seed={seed}")
    others = counterfactual_prompts(bridge, questions, "question")
    for number, (question, other) in enumerate(zip(questions, others, strict=True)):
        yield Case(family, number, bridge, question.prompt, question.target, question.foil, other)


def planted_cases(circuit: str, seeds: int = SEEDS, examples: int = EXAMPLES) -> Iterator[Case]:
    """Prompts of planted models of one circuit, all variants in turn."""
    from dcinterp.bridge import wrap
    from dcinterp.planted import read_plant, tokenizer

    number = 0
    for seed in range(seeds):
        for variant in VARIANTS:
            planted = read_plant(f"{circuit}{variant} seed={seed}")
            bridge = wrap(planted.model, tokenizer())
            for example in planted.examples(examples):
                yield Case(circuit, number, bridge, example.prompt, example.target, example.foil)
                number += 1


def measure(cases: Iterable[Case], file: Path, *, slow: int = 25, until: float | None = None) -> int:
    """Append a row for every case and stage that the file does not have; returns how many it made.

    Args:
        slow: of how many cases of a family the rules with an integral are measured too.
        until: stop before this time (of `time.monotonic`).
    """
    known = {row["key"] for row in resume_rows(file, NEEDED)}
    made = 0
    with appended(file) as out:
        for case in cases:
            for stage in stages_of(case.bridge):
                if until is not None and time.monotonic() > until:
                    return made
                if case.key(stage) not in known:
                    add_row(out, row_of(case, stage, integrals=case.number < slow))
                    made += 1
    return made


NEEDED = ("key", "family", "stage", "edges", "rules", "screened", "seconds")
"""What every row of the file has."""


def row_of(case: Case, stage: str, *, integrals: bool = True) -> dict[str, Any]:
    """One prompt: every edge removed, and how each rule predicts it."""
    bridge = case.bridge
    explanation = explain(bridge, case.prompt, case.target, case.foil)
    ids, metric, layers = explanation.ids, explanation.metric, tuple(range(bridge.cfg.n_layers))
    edges = list(all_units(bridge, "edge", stage))
    began = time.perf_counter()
    measured = removal_effects(bridge, ids, metric, edges, stage=stage).double()
    seconds = {"ablation": time.perf_counter() - began}
    where = torch.tensor([place(edge, layers) for edge in edges]).unbind(1)
    own = where[2] == where[3]
    integration = Integration(16, 64)
    states = EdgeQuestion(bridge, ids, metric, stage, layers).states(ids)
    scores: dict[str, Tensor] = {}
    for rule, entry in RULES.items():
        other = None
        if entry.passes is None and not integrals:
            continue
        if rule == "ig-counterfactual":
            if case.counterfactual is None:
                continue
            other = token_ids(bridge, case.counterfactual)
            if other.shape != ids.shape:
                continue
        began = time.perf_counter()
        ask = EdgeQuestion(bridge, ids, metric, stage, layers, other, integration=integration, gaps=False)
        slopes, _ = entry.slopes(ask)
        scores[rule] = torch.stack([slopes[layer].edges(states[layer]).sum(-1) for layer in layers]).double()
        seconds[rule] = time.perf_counter() - began
    row: dict[str, Any] = {
        "key": case.key(stage),
        "family": case.family,
        "stage": stage,
        "edges": len(edges),
        "rules": {},
    }
    for rule, found in scores.items():
        row["rules"][rule] = statistics_of(found[where], measured, own, _strongest(found, where))
    chosen = torch.zeros_like(scores[PREDICTOR], dtype=torch.bool)
    for at in union_of_rankings([scores[rule] for rule in SCREEN], CHECK):
        chosen[at] = True
    checked, predicted = chosen[where], scores[PREDICTOR][where]
    row["rules"]["screened"] = statistics_of(torch.where(checked, measured, predicted), measured, own, checked)
    row["rules"]["rest"] = statistics_of(predicted[~checked], measured[~checked], own[~checked], ~checked[~checked])
    row["screened"] = int(checked.sum())
    row["seconds"] = {name: round(value, 3) for name, value in seconds.items()}
    return row


def summarise(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The numbers of every family and stage, and of all families of trained or of planted models together."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kind = TRAINED if row["family"] in FAMILIES else PLANTED
        for name in (row["family"], kind):
            groups.setdefault(f"{name} {row['stage']}", []).append(row)
    return {name: _summary(some) for name, some in sorted(groups.items())}


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    rules = {rule for row in rows for rule in row["rules"]}
    return {
        "prompts": len(rows),
        "edges": rows[0]["edges"],
        "screened": round(mean(row["screened"] for row in rows), 1),
        "rules": {
            rule: {
                scope: _over_prompts([row["rules"][rule][scope] for row in rows if scope in row["rules"].get(rule, {})])
                for scope in SCOPES
            }
            for rule in sorted(rules)
        },
        "seconds": {
            name: round(median(row["seconds"][name] for row in rows if name in row["seconds"]), 2)
            for name in sorted({name for row in rows for name in row["seconds"]})
        },
    }


def _over_prompts(found: list[dict[str, Any]]) -> dict[str, float]:
    """correlation and rank: means; low: the 5 % point of the correlations; error, median: medians; found: a share."""
    if not found:
        return {"prompts": 0}
    correlations = sorted(each["correlation"] for each in found)
    numbers = {
        "correlation": mean(correlations),
        "low": correlations[len(correlations) // 20],
        "rank": mean(each["rank"] for each in found),
        "error": median(each["error"] for each in found),
        "median": median(each["median"] for each in found),
        "found": mean(each["found"] for each in found),
    }
    return {"prompts": len(found), **{name: round(value, 4) for name, value in numbers.items()}}


def statistics_of(predicted: Tensor, measured: Tensor, own: Tensor, checked: Tensor) -> dict[str, dict[str, Any]]:
    """The numbers of one rule on one prompt, over all edges and over those between two heads."""
    found: dict[str, dict[str, Any]] = {}
    for scope in SCOPES:
        chosen = torch.ones_like(own) if scope == "all" else ~own
        p, m = predicted[chosen], measured[chosen]
        if not len(m) or float(m.abs().max()) < 1e-4:  # in a planted model a family of edges may do nothing at all
            continue
        notable = m.abs() >= NOTABLE * m.abs().max()
        # Copies of a strongest edge, to rounding, are as good.
        best = m.abs() >= (1 - 1e-4) * m.abs().max()
        found[scope] = {
            "correlation": _correlation(p, m),
            "rank": _correlation(_ranks(p), _ranks(m)),
            "error": float((p - m).abs().sum() / m.abs().sum()),
            "median": float(((p - m).abs() / m.abs())[notable].median()),
            "found": bool((best & checked[chosen]).any()),
            "sums": [len(m), *(float(x.sum()) for x in (p, m, p * p, m * m, p * m))],
        }
    return found


def _strongest(scores: Tensor, where: tuple[Tensor, ...]) -> Tensor:
    """The edges that a check by this rule alone would measure: its strongest between heads, and of single heads."""
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    for at in union_of_rankings([scores], CHECK):
        chosen[at] = True
    return chosen[where]


def _correlation(a: Tensor, b: Tensor) -> float:
    x, y = a - a.mean(), b - b.mean()
    return float((x @ y) / (x.norm() * y.norm()).clamp(min=1e-12))


def _ranks(values: Tensor) -> Tensor:
    """Ranks from 0, ties sharing their mean."""
    _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts.double() + 1) / 2)[inverse]
