r"""The examples of a task as a table: is the answer right, how clear is it, and which head and edge matter most.

    m = logit of the answer - logit of the counterfactual's answer
    score of an edge: that of `circuit` (dcinterp.mechanism.circuit_scores)
    score of a head = sum over the edges that leave it through the stream

The main edge is the composition edge between two different heads with the largest score in size; in a model without
composition the largest edge of all. The main head has the largest score in size.

It does not show that head and edge do it alone: `circuit` ranks all, and `faithfulness` runs them. One example is one
example; its main edge may be another in the next.

Identity that the tests assert: the scores are those of `circuit` for the example alone; m is the model's own.

    table = dcinterp.example_table(model, "same-person n=20")
    table.table().sort_values("logit difference")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.circuit_graph import CircuitGraph
from dcinterp.mechanism.circuit_pairs import Counterfactual, batches, read_pairs
from dcinterp.mechanism.circuit_run import CircuitRun
from dcinterp.mechanism.circuit_scores import Scoring, score_edges
from dcinterp.mechanism.dataset import Examples
from dcinterp.mechanism.prompt import token_text
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count


@dataclass(frozen=True)
class ExampleTable(Result):
    """One entry an example: whether the answer is right, m, and the head and the edge with the largest scores.

    numbers: the examples' places in the given set, from which those without a counterfactual (`without`) are left out.
    answers, foils: the token that answers, and the one that answers the counterfactual; said: the model's own.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = dict.fromkeys(
        ("right", "logit_difference", "head_score", "edge_score"), ("example",)
    )
    LISTS: ClassVar[dict[str, tuple[str, ...]]] = dict.fromkeys(
        ("numbers", "prompts", "counterfactuals", "answers", "foils", "said", "heads", "edges"), ("example",)
    )

    without: int
    numbers: tuple[int, ...]
    prompts: tuple[str, ...]
    counterfactuals: tuple[str, ...]
    answers: tuple[str, ...]
    foils: tuple[str, ...]
    said: tuple[str, ...]
    heads: tuple[str, ...]
    edges: tuple[str, ...]
    right: Bool[Tensor, " example"]
    logit_difference: Float[Tensor, " example"]
    head_score: Float[Tensor, " example"]
    edge_score: Float[Tensor, " example"]

    def labels(self, axis: str) -> list[str] | None:
        return list(self.prompts) if axis == "example" else None

    def table(self) -> pd.DataFrame:
        """One row an example."""
        return pd.DataFrame(
            {
                "number": self.numbers,
                "prompt": self.prompts,
                "answer": self.answers,
                "said": self.said,
                "right": self.right.tolist(),
                "logit difference": self.logit_difference.tolist(),
                "main head": self.heads,
                "head score": self.head_score.tolist(),
                "main edge": self.edges,
                "edge score": self.edge_score.tolist(),
            }
        )

    def sentence(self) -> str:
        n, head = len(self.prompts), max(self.heads, key=self.heads.count)
        return (
            f"{int(self.right.sum())} of {n} answers are right. The head with the largest score, in size, is {head} in "
            f"{self.heads.count(head)} of all {n} examples."
            if n
            else ""
        )

    def warnings(self) -> list[str]:
        left = f"{self.without} examples have no counterfactual with another answer and are left out."
        return [left] if self.without else []


@analysis(
    needs_decoder=True,
    title="Examples as a table",
    question="Which examples does the model get right, and by which head and edge?",
    guide="analyses/circuits.md",
    example={"examples": "task0 n=2", "steps": "2"},
)
def example_table(
    bridge: Bridge,
    examples: Examples,
    *,
    counterfactual: Counterfactual = "any",
    steps: Count = 3,
    batch_size: Count = 16,
    progress: Progress = silent,
) -> ExampleTable:
    """Correctness, logit difference, main head and main edge of every example.

    Args:
        bridge: over a decoder of dcinterp, plain or composed.
        examples, counterfactual: as of `circuit`.
        steps: points of the integral.
        batch_size: prompts of one gradient run; bounds the memory.
        progress: called after each batch.

    Cost: of an example, `steps` + 2 runs forward and backward, each of about two passes of the model.

    Raises:
        UserError: the model is not a decoder of dcinterp, no example has a counterfactual, or one does not fit.
    """
    run = CircuitRun(bridge)
    pairs, without = read_pairs(bridge, examples, counterfactual)
    scores = score_edges(run, pairs, Scoring(steps=steps), batch_size=batch_size, progress=progress)
    metric, said, right = torch.zeros(len(pairs)), [""] * len(pairs), [False] * len(pairs)
    with torch.no_grad():
        for batch in batches(pairs, batch_size):
            logits, _ = run(batch.ids)
            metric[list(batch.places)] = batch.metric(logits).float().cpu()
            for place, token in zip(batch.places, logits.argmax(-1).tolist(), strict=True):
                said[place], right[place] = token_text(bridge, token), token == pairs[place].target
    answers = [token_text(bridge, pair.target) for pair in pairs]
    heads, head_score = _main_heads(run.graph, scores)
    edges, edge_score = _main_edges(run.graph, scores)
    return ExampleTable(
        without=without,
        numbers=tuple(pair.place for pair in pairs),
        prompts=tuple(pair.prompt for pair in pairs),
        counterfactuals=tuple(pair.counterfactual for pair in pairs),
        answers=tuple(answers),
        foils=tuple(token_text(bridge, pair.foil) for pair in pairs),
        said=tuple(said),
        heads=heads,
        edges=edges,
        right=torch.tensor(right),
        logit_difference=metric,
        head_score=head_score,
        edge_score=edge_score,
    )


def _main_heads(
    graph: CircuitGraph, scores: Float[Tensor, "example edge"]
) -> tuple[tuple[str, ...], Float[Tensor, " example"]]:
    """Of every example the head whose edges through the stream add up to most in size."""
    names = [writer for writer in graph.writers if writer.startswith("L")]
    places = {name: place for place, name in enumerate(names)}
    leaving = torch.zeros(len(names), graph.size)
    for edge_place, edge in enumerate(graph.edges):
        if edge.kind == "stream" and edge.source in places:
            leaving[places[edge.source], edge_place] = 1
    return _largest(names, scores @ leaving.T)


def _main_edges(
    graph: CircuitGraph, scores: Float[Tensor, "example edge"]
) -> tuple[tuple[str, ...], Float[Tensor, " example"]]:
    """Of every example the composition edge between two heads with the largest score; without these, any edge."""
    between = [place for place, edge in enumerate(graph.edges) if edge.kind != "stream" and edge.source != edge.target]
    chosen = between or list(range(graph.size))
    return _largest([graph.names[place] for place in chosen], scores[:, chosen])


def _largest(
    names: list[str], scores: Float[Tensor, "example part"]
) -> tuple[tuple[str, ...], Float[Tensor, " example"]]:
    most = scores.abs().argmax(1)
    return tuple(names[place] for place in most.tolist()), scores.gather(1, most[:, None])[:, 0]
