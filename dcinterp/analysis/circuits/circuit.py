r"""The circuit behind the answers to a set of prompts: a score for every edge of the model, composition included.

    m = logit of the answer - logit of the counterfactual's answer
    score of an edge, about  m(model) - m(model with this edge patched from the counterfactual prompt)

The edges: from every writer into the residual stream (embedding, heads, MLPs) to every later reader (the query, key and
value of every head, the dynamic weights of every stage, MLPs, logits); and in a layer from the head that computes an
attention matrix to the head that uses it, by stage and branch (dcinterp.mechanism.circuit_graph). The methods are in
dcinterp.mechanism.circuit_scores: "exact" patches every edge in turn, the others predict it by gradients. By default
edges of composition that both prompts share, but that matter by being removed, come behind those that differ.

Source: edge attribution patching (Syed et al. 2023, arXiv 2310.10348), with integrated gradients (Hanna et al. 2024,
arXiv 2403.17806); the edges of composition are ours.

It does not show that the edges with high scores do the work together: `faithfulness` runs the model with these alone.
Nor does an edge say what it carries; and what is the same on both prompts of a pair scores nothing, however needed.

Identity that the tests assert: "exact" is a hand-written hook; "eap" is the derivative of patching; the scores of
"gates" add up to m(model) - m(counterfactual).

    circuit = dcinterp.circuit(model, "same-person n=20")
    circuit.table().head(20)
    dcinterp.figures.plot(circuit)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.attribution_graph import attribution_graph, write_attribution_graph
from dcinterp.mechanism.circuit_drawing import CircuitNotes, Drawing, Shape, draw_circuit
from dcinterp.mechanism.circuit_graph import CircuitGraph, Edge
from dcinterp.mechanism.circuit_pairs import Counterfactual, ranked_and_measured, read_pairs
from dcinterp.mechanism.circuit_run import CircuitRun
from dcinterp.mechanism.circuit_scores import FROM, Contrast, Others, ScoreMethod, Scoring, score_edges
from dcinterp.mechanism.dataset import Examples
from dcinterp.mechanism.faithfulness import edges_kept, faithfulness_of, keep_top, measure_circuits, way_warnings
from dcinterp.mechanism.prompt import str_tokens
from dcinterp.mechanism.statistics import bootstrap_interval, count_distinct, few_examples, numbered
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count, Level

TOLERANCE = 0.05
"""Of the sum of the scores by gates, as a share of what it should be, before a warning."""


@dataclass(frozen=True)
class CircuitScores(Result):
    """The scores of all edges over n prompts, in logits.

    held_out: whether the prompts that the circuit is measured on (`prompts`) are others than those n.
    edges: their names; sources, targets: the nodes that they join; edge_kinds: "stream", or stage and branch, as in
    "post kp". mean, low, high [edge]: of the score over prompts, with its interval. kept [edge]: the circuit, the
    `size` edges of largest mean in size; connected [edge]: those of them on a path of kept edges from the embedding to
    the logits.
    metric, patched, alone [example]: m of the model, with all edges patched, and with the circuit's edges alone kept.
    tokens: of the first of the prompts. repeats: of every prompt the number of its facts, one for those that repeat
    each other; None in what earlier versions saved.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        **{name: ("edge",) for name in ("mean", "low", "high", "kept", "connected")},
        **{name: ("example",) for name in ("metric", "patched", "alone")},
    }
    LISTS: ClassVar[dict[str, tuple[str, ...]]] = {
        **dict.fromkeys(("edges", "sources", "targets", "edge_kinds"), ("edge",)),
        "counterfactuals": ("example",),
        "repeats": ("example",),
    }

    n: int
    without: int
    method: str
    contrast: str
    counterfactual: str
    level: float
    size: int
    prompts: tuple[str, ...]
    counterfactuals: tuple[str, ...]
    edges: tuple[str, ...]
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    edge_kinds: tuple[str, ...]
    mean: Float[Tensor, " edge"]
    low: Float[Tensor, " edge"]
    high: Float[Tensor, " edge"]
    kept: Bool[Tensor, " edge"]
    connected: Bool[Tensor, " edge"]
    metric: Float[Tensor, " example"]
    patched: Float[Tensor, " example"]
    alone: Float[Tensor, " example"]
    held_out: bool = False
    tokens: tuple[str, ...] = ()
    repeats: tuple[int, ...] | None = None

    def labels(self, axis: str) -> list[str] | None:
        return {"edge": list(self.edges), "example": list(self.prompts)}.get(axis)

    @property
    def faithfulness(self) -> float:
        """f of the circuit, on the prompts that it is measured on."""
        return float(faithfulness_of(self.alone, self.patched, self.metric))

    @cached_property
    def edge_list(self) -> tuple[Edge, ...]:
        """All edges, in the order of the scores."""
        return tuple(map(Edge, self.sources, self.targets, self.edge_kinds))

    def highest(self, size: int, switched: Collection[str] = ()) -> Bool[Tensor, " edge"]:
        """The circuit of the `size` edges of largest mean, in size, with some edges by name put in or taken out.

        Raises:
            UserError: there is no edge of one of these names.
        """
        kept = torch.zeros(len(self.edges), dtype=torch.bool)
        kept[self.mean.abs().argsort(descending=True, stable=True)[:size]] = True
        for name in switched:
            if name not in self.edges:
                raise UserError(f"There is no edge {name!r} in this model; {nearest(name, self.edges)}")
            kept[self.edges.index(name)] ^= True
        return kept

    def drawing(self, kept: Bool[Tensor, " edge"] | None = None, notes: CircuitNotes | None = None) -> Drawing:
        """The circuit as nodes with places and the edges between them.

        Args:
            kept: the edges of the circuit; by default that of the result.
            notes: pinned nodes, groups, and names of nodes.
        """
        chosen = self.kept if kept is None else kept
        return draw_circuit(self.edge_list, self.mean.tolist(), chosen.tolist(), notes)

    def to_attribution_graph(
        self,
        path: str | Path | None = None,
        *,
        kept: Bool[Tensor, " edge"] | None = None,
        notes: CircuitNotes | None = None,
        slug: str = "circuit",
    ) -> dict[str, Any]:
        """The circuit as the JSON that the viewers of circuit-tracer and Neuronpedia read; weights are mean scores.

        Args:
            path: a file to write it to as well.
            kept, notes: as of `drawing`; groups become supernodes.
            slug: the name of the graph.

        Raises:
            UserError: the file cannot be written.
        """
        notes = notes or CircuitNotes()
        graph = attribution_graph(
            self.drawing(kept, CircuitNotes(pinned=notes.pinned, names=notes.names)),
            Shape.of(self.edge_list),
            slug=slug,
            model=Path(self.call.model).name if self.call is not None and self.call.model else "unknown",
            tokens=self.tokens or self.prompts[0].split(),
            prompt=self.prompts[0],
            answer="logit of the answer minus that of the counterfactual's answer",
            notes=notes,
            about=f"Weights are scores of edges by {self.method!r}, in logits, means over {self.n} prompts.",
        )
        if path is not None:
            write_attribution_graph(graph, path)
        return graph

    def table(self) -> pd.DataFrame:
        """One row per edge, the largest means (in size) first."""
        frame = pd.DataFrame(
            {
                "edge": self.edges,
                "source": self.sources,
                "target": self.targets,
                "kind": self.edge_kinds,
                **{name: getattr(self, name).tolist() for name in ("mean", "low", "high", "kept", "connected")},
            }
        )
        return frame.sort_values("mean", key=abs, ascending=False, ignore_index=True, kind="stable")

    def sentence(self) -> str:
        composed = sum(kind != "stream" for kind, kept in zip(self.edge_kinds, self.kept.tolist(), strict=True) if kept)
        return (
            f"With {self.size:,} of {len(self.edges):,} edges kept, those of the largest scores in size ({composed} of "
            f"composition), and the others patched from {FROM[self.contrast]}, the mean of m (logit of the answer "
            f"minus that of the counterfactual's answer) is {float(self.alone.mean()):+.2f}; with all edges it is "
            f"{float(self.metric.mean()):+.2f}, with none {float(self.patched.mean()):+.2f}: "
            f"{self.faithfulness:.0%} of the way, on {self._where}."
        )

    @property
    def _where(self) -> str:
        return (
            f"{len(self.prompts)} prompts that the edges were not ranked on"
            if self.held_out
            else "the prompts that the edges were ranked on"
        )

    def warnings(self) -> list[str]:
        sentences = few_examples(len(self.prompts), distinct=count_distinct(self.repeats)) or few_examples(self.n)
        sentences += way_warnings(self.metric, self.patched, self.level, self.repeats)
        wrong = int((self.metric <= 0).sum())
        if wrong:
            sentences.append(
                f"In {wrong} of {len(self.prompts)} prompts the model prefers the counterfactual's answer: the scores "
                "are of m all the same, not of what the model answers."
            )
        if self.without:
            sentences.append(f"{self.without} examples have no such counterfactual and are left out.")
        span = float((self.metric - self.patched).mean())
        gap = float(self.mean.double().sum()) - span
        if self.method == "gates" and not self.held_out and abs(gap) > TOLERANCE * abs(span):
            sentences.append(f"The scores add up to {span + gap:+.2f}, but m changes by {span:+.2f}: raise steps.")
        idle = int(self.kept.sum() - self.connected.sum())
        if idle:
            sentences.append(
                f"{idle} of the {self.size} edges of the circuit are on no path of its edges from the embedding to the "
                "logits, and carry no difference."
            )
        return sentences


@analysis(
    needs_decoder=True,
    title="Circuit",
    question="Which edges of the whole model make the answers, composition included?",
    guide="analyses/circuits.md",
    example={"examples": "task0 n=4", "steps": "2"},
)
def circuit(
    bridge: Bridge,
    examples: Examples,
    *,
    counterfactual: Counterfactual = "any",
    contrast: Contrast = "counterfactual",
    method: ScoreMethod = "gates-relp",
    fraction: Level = 0.05,
    held_out: bool = False,
    steps: Count = 5,
    level: Level = 0.95,
    seed: int = 0,
    batch_size: Count = 16,
    progress: Progress = silent,
) -> CircuitScores:
    """Score every edge of the model, and run it with the highest ones alone.

    Args:
        bridge: over a decoder of dcinterp, plain or composed.
        examples: a text such as "same-person n=20", examples of the tasks, or a list of (prompt, answer, counterfactual
            prompt, its answer).
        counterfactual: what the counterfactual of an example of the tasks changes: "question", "source", "relation",
            "polarity", or "any", the first of these that exists.
        contrast: what patched edges carry: their values on the "counterfactual" prompt, or the "mean" over all prompts
            of the set of the same length.
        method: "gates-relp", "gates", "eap-ig", "eap-ig-activations" and "eap" predict by gradients; "exact" patches
            every edge.
        fraction: the circuit's share of all edges.
        held_out: rank the edges on one half of the prompts and run the circuit on the other, as `faithfulness` does.
        steps: points of the integral, for "gates-relp", "gates" and both kinds of "eap-ig".
        level: confidence level of the intervals over prompts.
        seed: seed of the bootstrap.
        batch_size: prompts of one gradient run; bounds the memory.
        progress: called after each batch.

    Cost: of a prompt, `steps` runs forward and backward ("gates-relp": one more), each of about two passes of the
    model; "exact": as many runs as there are edges (1,774 in `dcformer++`).

    Raises:
        UserError: the model is not a decoder of dcinterp, no example has a counterfactual, or one does not fit; with
            `held_out`, all prompts share their facts.
    """
    run = CircuitRun(bridge)
    every, without = read_pairs(bridge, examples, counterfactual)
    pairs, measured = ranked_and_measured(every) if held_out else (every, every)
    scores = score_edges(run, pairs, Scoring(method, contrast, steps), batch_size=batch_size, progress=progress)
    low, high = bootstrap_interval(scores, level=level, seed=seed, groups=[pair.repeats for pair in pairs])
    mean = scores.mean(0)
    (kept,) = keep_top(mean.abs(), [fraction])
    others = Others(run, measured, contrast, batch_size)
    m = measure_circuits(
        run, measured, others, torch.stack([torch.ones_like(kept), 0 * kept, kept]), batch_size=batch_size
    )
    graph: CircuitGraph = run.graph
    return CircuitScores(
        n=len(pairs),
        without=without,
        method=method,
        contrast=contrast,
        counterfactual=counterfactual,
        level=level,
        size=edges_kept(fraction, graph.size),
        prompts=tuple(pair.prompt for pair in measured),
        counterfactuals=tuple(pair.counterfactual for pair in measured),
        edges=graph.names,
        sources=tuple(edge.source for edge in graph.edges),
        targets=tuple(edge.target for edge in graph.edges),
        edge_kinds=tuple(edge.kind for edge in graph.edges),
        mean=mean,
        low=low.float(),
        high=high.float(),
        kept=kept.bool(),
        connected=graph.connected(kept.bool()),
        metric=m[0],
        patched=m[1],
        alone=m[2],
        held_out=held_out,
        tokens=tuple(str_tokens(bridge, measured[0].ids)),
        repeats=numbered([pair.repeats for pair in measured]),
    )
