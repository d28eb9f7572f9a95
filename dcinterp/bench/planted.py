r"""Ways of scoring the edges of composition, held to circuits that are known: planted ones, and trained ones.

    AUROC      chance that a true edge scores above another one
    top 5      share of true edges among the five highest (or as many as there are true ones, where these are fewer)
    rank       Spearman's correlation of |score| and |measured effect|: m(model) - m(model with the edge patched)
    CMD, CPR   area of |1 - f| and of f (dcinterp.mechanism.faithfulness), over the edges of composition alone: those of
               the stream are all kept
    cost       seconds, and prompts run forward and backward, for each prompt that is explained

A score is the mean over the first half of the prompts, by size; circuits are measured on the other half. The edges are
those of every layer that the statement of the circuit is about: of a planted model all but layer 0, whose heads look at
the same places in every prompt. A score below a hundredth of the largest counts as zero.

A measurement is resumable: what a file holds already, rows and methods, is not measured again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dcinterp.bench.row_file import read_rows, write_rows
from dcinterp.bridge.protocol import Bridge
from dcinterp.checkpoints.fingerprint import WATCHES
from dcinterp.mechanism.branches import NAMES
from dcinterp.mechanism.circuit_graph import ComposeEdges, bare
from dcinterp.mechanism.circuit_pairs import Pair, batches
from dcinterp.mechanism.circuit_run import CircuitRun
from dcinterp.mechanism.circuit_scores import Others, Scoring, run_circuits, score_edges
from dcinterp.mechanism.edge_removal import removal_effects
from dcinterp.mechanism.edge_rules import RULES, EdgeQuestion
from dcinterp.mechanism.faithfulness import (
    FRACTIONS,
    cmd,
    cpr,
    edges_kept,
    faithfulness_of,
    measure_circuits,
    node_ranking,
)
from dcinterp.mechanism.interventions import Intervention
from dcinterp.mechanism.path_gradient import Integration
from dcinterp.mechanism.statistics import auroc, bootstrap_interval
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, silent

SEEDS, PROMPTS = 3, 6
"""Models of each setting, and prompts of each model: half to rank the edges on, half to measure circuits on."""
VARIANTS = (" heads=8", " heads=8 background=0.05")
"""Of every planted kind; fewer heads than by default, since exact patching takes a run for every pair of them."""
ENOUGH = 0.95
"""Mean AUROC below which a method is said to fail."""
LEAST = 0.1
"""Logits by which patching all edges has to change m."""
CHECKED = 32
"""Prompts on which the share of right answers is counted."""
NUMBERS = ("auroc", "top5", "rank", "cmd", "cpr", "seconds", "forward", "backward")


@dataclass(frozen=True)
class Specimen:
    """A model with a circuit that is known, and prompts of one kind of question with their counterfactuals.

    true: names of the composition edges that make the answers; layers: that the statement is about. right: share of
    prompts that the model answers right.
    """

    name: str
    seed: int
    bridge: Bridge
    pairs: tuple[Pair, ...]
    true: frozenset[str]
    layers: tuple[int, ...]
    right: float

    @cached_property
    def run(self) -> CircuitRun:
        return CircuitRun(self.bridge)

    @property
    def ranked(self) -> list[Pair]:
        """The prompts that edges are ranked on."""
        return list(self.pairs[: len(self.pairs) // 2])

    @property
    def measured(self) -> list[Pair]:
        """Those that circuits are measured on."""
        return list(self.pairs[len(self.pairs) // 2 :])

    @cached_property
    def groups(self) -> list[ComposeEdges]:
        """The composition edges in question, by layer, stage and branch."""
        stages = self.run.graph.stages or ("post",)
        return [
            group for layer in self.layers for stage in stages for group in self.run.graph.composition(layer, stage)
        ]

    @cached_property
    def places(self) -> Tensor:
        """Where they are in the list of all edges."""
        return torch.tensor([group.start + i for group in self.groups for i in range(group.size)])

    @cached_property
    def labels(self) -> Bool[Tensor, " edge"]:
        """Which of them are true."""
        names = self.run.graph.names
        return torch.tensor([names[place] in self.true for place in self.places.tolist()])

    @cached_property
    def effects(self) -> Float[Tensor, " edge"]:
        """The measured effect of patching each of them alone, mean over the prompts they are ranked on."""
        return _exact(self)


def specimen_of(setting: str, seed: int, prompts: int = PROMPTS) -> Specimen:
    """A model with prompts of one case. Of a planted kind the seed makes another model, of a trained one other prompts.

    Args:
        setting: such as "chain background=0.05", or the name of a trained model.
        seed: from 0.
        prompts: how many, half of them to rank the edges on.
    """
    from dcinterp.planted.fixtures import load_fixture, trained

    fixed = setting in trained()
    fixture = load_fixture(setting if fixed else f"{setting} seed={seed}")
    words: Any = fixture.tokenizer
    bridge, pairs = fixture.bridge(), []
    for place, one in enumerate(fixture.pairs(prompts, seed=seed if fixed else 0)):
        texts = (one.prompt, one.counterfactual)
        ids, changed = (torch.tensor([words(text, add_special_tokens=False)["input_ids"]]) for text in texts)
        target, foil = (words.convert_tokens_to_ids(word) for word in (one.answer, one.foil))
        pairs.append(Pair(ids, changed, target, foil, "own", one.prompt, one.counterfactual, place))
    right = _right(bridge, fixture.pairs(CHECKED, seed=CHECKED), words)
    return Specimen(setting, seed, bridge, tuple(pairs), frozenset(fixture.edges), fixture.layers, right)


@torch.no_grad()
def _right(bridge: Bridge, pairs: Sequence[Any], words: Any) -> float:
    """The share of prompts that the model answers right."""
    ids = torch.tensor([words(pair.prompt, add_special_tokens=False)["input_ids"] for pair in pairs])
    answers = torch.tensor([words.convert_tokens_to_ids(pair.answer) for pair in pairs])
    return round(float((bridge(ids)[:, -1].argmax(-1) == answers).float().mean()), 4)


Method = Callable[[Specimen], Float[Tensor, " edge"]]
"""From a specimen to a signed score for each of its edges."""


def _scorer(specimen: Specimen, method: str) -> Tensor:
    return score_edges(specimen.run, specimen.ranked, Scoring(method)).mean(0)[specimen.places]


@torch.no_grad()
def _exact(specimen: Specimen) -> Tensor:
    run, places = specimen.run, specimen.places
    kept = torch.ones(len(places) + 1, run.graph.size)
    kept[torch.arange(len(places)), places] = 0
    others, found = Others(run, specimen.ranked, "counterfactual"), []
    for batch in batches(specimen.ranked, 16):
        m = run_circuits(run, batch, others.of(batch), kept)
        found.append(m[-1] - m[:-1])
    return torch.cat(found, 1).mean(1)


def _nodes(specimen: Specimen) -> Tensor:
    scores = score_edges(specimen.run, specimen.ranked, Scoring("eap-ig")).mean(0)
    return node_ranking(specimen.run.graph, scores)[specimen.places]


def _rule(specimen: Specimen, rule: str) -> Tensor:
    """A rule of attribute_edges: what it predicts of removing each edge."""

    def one(pair: Pair, stage: str) -> Tensor:
        layers = specimen.layers
        ask = EdgeQuestion(
            specimen.bridge, pair.ids, _metric(pair), stage, layers, integration=Integration(16, 64), gaps=False
        )
        slopes, _ = RULES[rule].slopes(ask)
        states = ask.states(pair.ids)
        return torch.stack([slopes[layer].edges(states[layer]).sum(-1) for layer in layers])

    return _by_stage(specimen, one)


def _removal(specimen: Specimen) -> Tensor:
    def one(pair: Pair, stage: str) -> Tensor:
        heads = specimen.bridge.cfg.n_heads
        table = torch.zeros(len(specimen.layers), len(NAMES), heads, heads)
        groups = [group for group in specimen.groups if group.stage == stage]
        edges = [Intervention("edge", g.layer, stage, _named(g.kind), t, f) for g in groups for f, t in g.pairs]
        found = removal_effects(specimen.bridge, pair.ids, _metric(pair), edges, stage=stage)
        for edge, effect in zip(edges, found.tolist(), strict=True):
            table[specimen.layers.index(edge.layer), NAMES.index(edge.name), edge.head_from, edge.head] = effect
        return table

    return _by_stage(specimen, one)


def _by_stage(specimen: Specimen, one: Callable[[Pair, str], Tensor]) -> Tensor:
    """The scores of all edges from tables [layer, branch, head_from, head_to] of every pair and stage."""
    stages = specimen.run.graph.stages or ("post",)
    tables = {stage: torch.stack([one(p, stage).detach().float() for p in specimen.ranked]).mean(0) for stage in stages}
    found = []
    for g in specimen.groups:
        table = tables[g.stage][specimen.layers.index(g.layer), NAMES.index(_named(g.kind))]
        table = table * _share(specimen, g)
        found.append(torch.stack([table[f, t] for f, t in g.pairs]))
    return torch.cat(found)


def _named(kind: str) -> str:
    """What the edges of `attribute_edges` call it: there the static map is one with the skip."""
    return "skip" if kind == "static" else kind


def _share(specimen: Specimen, edges: ComposeEdges) -> Tensor | float:
    """By pair of heads: what of an edge of the skip and the static map together is these edges' own."""
    layer: Any = bare(specimen.run.model.model.layers[edges.layer])
    composer: Any = getattr(bare(layer.self_attn), edges.stage, None)
    weights = None if composer is None else bare(composer).probe()
    if edges.kind not in ("skip", "static") or weights is None or weights.static is None:
        return 1.0
    skip, static = torch.eye(edges.heads) * weights.skip, weights.static.detach().float()
    own = skip if edges.kind == "skip" else static
    return torch.where(own == 0, 0.0, own / (skip + static))


def _heads(specimen: Specimen) -> Tensor:
    """Head attribution says which heads write the answer: every edge into a head gets the head's score."""
    from dcinterp.analysis.attribution.attribute_heads import attribute_heads

    found = [
        attribute_heads(specimen.bridge, p.ids[0].tolist(), p.target, p.foil).scores.float() for p in specimen.ranked
    ]
    table = torch.stack(found).mean(0)
    return torch.cat([torch.stack([table[g.layer, t] for _, t in g.pairs]) for g in specimen.groups])


def _transformer_lens(specimen: Specimen) -> Tensor:
    """Its graph has no such edges: each comes as high as the lower of its two heads, as one attends and one writes."""
    from dcinterp.bridge.edge_attribution import stream_attribution

    found = [stream_attribution(specimen.bridge, p.ids, p.other, _metric_of_one(p)) for p in specimen.ranked]
    attends, writes = (torch.stack(each).mean(0).abs() for each in zip(*found, strict=True))
    return torch.cat(
        [
            torch.stack([torch.minimum(attends[g.layer, f], writes[g.layer, t]) for f, t in g.pairs])
            for g in specimen.groups
        ]
    )


def _random(specimen: Specimen) -> Tensor:
    return torch.rand(len(specimen.places), generator=torch.Generator().manual_seed(specimen.seed))


def _metric(pair: Pair) -> Callable[[Tensor], Tensor]:
    return lambda logits: logits[:, -1, pair.target] - logits[:, -1, pair.foil]


def _metric_of_one(pair: Pair) -> Callable[[Tensor], Tensor]:
    return lambda logits: _metric(pair)(logits)[0]


METHODS: Mapping[str, Method] = {
    "exact patching": lambda specimen: specimen.effects,
    "gates + RelP": partial(_scorer, method="gates-relp"),
    "gates": partial(_scorer, method="gates"),
    "EAP-IG": partial(_scorer, method="eap-ig"),
    "EAP": partial(_scorer, method="eap"),
    "nodes": _nodes,
    "removal": _removal,
    "edge IG": partial(_rule, rule="ig"),
    "edge gradient": partial(_rule, rule="gradient"),
    "recomputed": partial(_rule, rule="recomputed"),
    "RelP": partial(_rule, rule="relp"),
    "head IG": _heads,
    "TransformerLens EAP": _transformer_lens,
    "random": _random,
}
"""A new method is one function and one line."""

ABOUT = {
    "exact patching": "every edge patched alone with its values on the counterfactual prompt, and the model run",
    "gates + RelP": "the default of `circuit`: gates, and behind them by RelP what is needed and differs in nothing",
    "gates": "integrated gradients of the gates of all edges together",
    "EAP-IG": "edge attribution patching, the gradient averaged over embeddings from the counterfactual's on",
    "EAP": "edge attribution patching: one gradient",
    "nodes": "EAP-IG summed over nodes; an edge comes as high as the lower of the two that it joins",
    "removal": "every edge set to zero alone, and the model run",
    "edge IG": "`attribute_edges` by integrated gradients from nothing",
    "edge gradient": "`attribute_edges` by gradient times edge",
    "recomputed": "`attribute_edges` by the gradient, the softmax computed anew",
    "RelP": "`attribute_edges` by the gradient of the linearised model",
    "head IG": "`attribute_heads`: an edge gets the score of the head that it leads to",
    "TransformerLens EAP": "TransformerLens's edge attribution patching, whose graph has no such edges: an edge comes "
    "as high as the lower of what enters one head's query and key, and what leaves the other head",
    "random": "a random order",
}
assert set(ABOUT) == set(METHODS)


def measure_one(specimen: Specimen, method: str) -> dict[str, float]:
    """All numbers of one method on one specimen."""
    if method != "exact patching":
        _ = specimen.effects  # so that its cost is no other's
    else:
        specimen.__dict__.pop("effects", None)
    with _counted(specimen) as ran:
        began = time.perf_counter()
        scores = METHODS[method](specimen)
        seconds = time.perf_counter() - began
    size = scores.abs()
    size = torch.where(size < 0.01 * size.max(), 0.0, size)
    n = len(specimen.ranked)
    found = {"auroc": auroc(size, specimen.labels), "top5": top_few(size, specimen.labels)}
    found |= {"rank": rank_correlation(size, specimen.effects.abs())} | faithfulness_on(specimen, size)
    found |= {"seconds": seconds / n, "forward": ran["forward"] / n, "backward": ran["backward"] / n}
    return {name: round(float(value), 4) for name, value in found.items()}


def top_few(scores: Float[Tensor, " edge"], labels: Bool[Tensor, " edge"], few: int = 5) -> float:
    """The share of true edges among the `few` highest, or among as many as are true; ties count what chance gives."""
    few = min(few, int(labels.sum()))
    last = scores.sort(descending=True).values[few - 1]
    above, tied = scores > last, scores == last
    return (int(labels[above].sum()) + (few - int(above.sum())) * float(labels[tied].double().mean())) / few


def rank_correlation(first: Float[Tensor, " edge"], second: Float[Tensor, " edge"]) -> float:
    """Spearman's, of ranks with ties shared; 0 where one of them is all the same."""
    ranks = []
    for x in (first, second):
        # Below a millionth of the largest is rounding, which has no rank.
        x = torch.where(x < 1e-6 * x.max(), 0.0, x)
        _, place, counts = x.unique(return_inverse=True, return_counts=True)
        ranks.append((counts.cumsum(0).double() - (counts - 1) / 2)[place])
    a, b = (rank - rank.mean() for rank in ranks)
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size else 0.0


def faithfulness_on(specimen: Specimen, ranking: Float[Tensor, " edge"]) -> dict[str, float]:
    """CMD and CPR over the composition edges of a specimen, all other edges kept."""
    run, places, fractions = specimen.run, specimen.places, FRACTIONS
    order = places[ranking.argsort(descending=True, stable=True)]
    kept = torch.ones(len(fractions) + 1, run.graph.size)
    kept[:, places] = 0
    for row, fraction in zip(kept[1:], fractions, strict=True):
        row[order[: edges_kept(fraction, len(order))]] = 1
    others = Others(run, specimen.measured, "counterfactual")
    with torch.no_grad():
        m = measure_circuits(run, specimen.measured, others, kept)
    if abs(float((m[-1] - m[0]).mean())) < LEAST:
        raise UserError(f"{specimen.name}: patching all edges of composition changes nothing, so f has no scale.")
    f = faithfulness_of(m[1:], m[0], m[-1]).tolist()
    return {"cmd": cmd(fractions, f), "cpr": cpr(fractions, f)}


@contextmanager
def _counted(specimen: Specimen) -> Iterator[dict[str, int]]:
    """How many prompts go through the unembedding, forward and backward."""
    ran = {"forward": 0, "backward": 0}

    def count(module: Any, inputs: Any, output: Tensor) -> None:
        rows = output[..., 0, 0].numel()
        ran["forward"] += rows
        if output.requires_grad:
            output.register_hook(lambda gradient: ran.update(backward=ran["backward"] + rows))

    setattr(count, WATCHES, True)
    head: Any = bare(specimen.run.model.lm_head)
    handle = head.register_forward_hook(count)
    try:
        yield ran
    finally:
        handle.remove()


def settings_of(
    kinds: Sequence[str] = (), seeds: int = SEEDS, variants: Sequence[str] = VARIANTS
) -> list[tuple[str, int]]:
    """(setting, seed) of everything that is measured: planted kinds with their variants, and trained circuits."""
    from dcinterp.planted.fixtures import fixtures, trained

    chosen = tuple(kinds) or fixtures()
    found = [kind for kind in chosen if kind in trained()]
    found += [kind + variant for variant in variants for kind in chosen if kind not in trained()]
    # A seed of everything, then the next: what was stopped half way has something of all.
    return [(setting, seed) for seed in range(seeds) for setting in found]


def measure(
    wanted: Sequence[tuple[str, int]],
    file: Path,
    *,
    methods: Sequence[str] = tuple(METHODS),
    prompts: int = PROMPTS,
    progress: Progress = silent,
) -> int:
    """Measure every setting and seed, where the file does not have it already; returns how many rows it wrote.

    A row that lacks some of the methods gets those.

    Args:
        wanted: (setting, seed), as `settings_of` gives them.
        file: of the rows.
        methods: names of `METHODS`.
        prompts: of each model.
        progress: called after each row; what it raises stops the measurement, and the rows so far are kept.

    Raises:
        UserError: the file has rows of another measurement, or of another number of prompts.
    """
    rows, made = {row["key"]: row for row in read_rows(file, NEEDED)}, 0

    def missing(key: str) -> list[str]:
        return [method for method in methods if method not in rows.get(key, {}).get("methods", {})]

    todo = [(setting, seed) for setting, seed in wanted if missing(f"{setting} seed={seed}")]
    there = next((row["prompts"] for row in rows.values() if row["prompts"] != prompts), None)
    if todo and there is not None:
        raise UserError(
            f"{file} has rows of {there} prompts a model, not of {prompts}; give the same, or another file."
        )
    for setting, seed in todo:
        key = f"{setting} seed={seed}"
        row = rows.get(key, {"key": key, "setting": setting, "seed": seed, "prompts": prompts, "methods": {}})
        specimen = specimen_of(setting, seed, row["prompts"])
        found = row["methods"] | {method: measure_one(specimen, method) for method in missing(key)}
        about = {"right": specimen.right, "edges": len(specimen.places), "true": int(specimen.labels.sum())}
        rows = {each["key"]: each for each in read_rows(file, NEEDED)}  # another process may have added some
        found = rows.get(key, row)["methods"] | found
        rows[key] = row | about | {"methods": {method: found[method] for method in METHODS if method in found}}
        write_rows(file, rows.values())
        made += 1
        progress(made, len(todo), setting)
    return made


NEEDED = ("key", "setting", "seed", "prompts", "methods")
"""What every row of the file has."""


@dataclass(frozen=True)
class Mean:
    """A mean over models, with its interval (95 %)."""

    value: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float], bounds: tuple[float, float] | None = None) -> Mean:
        low, high = bootstrap_interval(torch.tensor(values, dtype=torch.float64), bounds=bounds)
        return cls(fmean(values), float(low), float(high), len(values))

    def __str__(self) -> str:
        if self.n == 1 or self.high - self.low < 0.005:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


BOUNDS = {"auroc": (0.0, 1.0), "top5": (0.0, 1.0), "rank": (-1.0, 1.0)}


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, Mean]]]:
    """By setting, method and number: means over seeds."""
    found: dict[str, dict[str, dict[str, Mean]]] = {}
    for setting in dict.fromkeys(row["setting"] for row in rows):
        some = [row["methods"] for row in rows if row["setting"] == setting]
        found[setting] = {
            method: {
                name: Mean.of([each[method][name] for each in some if method in each], BOUNDS.get(name))
                for name in NUMBERS
            }
            for method in dict.fromkeys(method for each in some for method in each)
        }
    return found
