r"""Which head reaches which part of which head: patching along one edge, or along a path of several.

    share[edge] = (f(patched) - f(corrupted)) / (f(clean) - f(corrupted))

One run (the clean prompt's with noising, the counterfactual's with denoising) gets what one part wrote on the other
prompt, but only where one receiver reads it: the query, key or value of a head, the dynamic weights of a stage, an MLP,
the logits, or, along a composition edge, a head that uses another head's attention. All other parts read what they read
before; what comes after the receiver is computed anew. With `through`, the receiver's new value goes on along the named
edges alone, so that the path is one of direct edges from end to end.

Source: path patching (Wang et al. 2022, arXiv 2211.00593; Goldowsky-Dill et al. 2023, arXiv 2304.05969). The edges into
dynamic weights and those of composition are ours (dcinterp.mechanism.circuit_graph).

It does not show what reaches the receiver by way of other parts: Wang et al. let MLPs in between respond, here they are
edges of their own. A share is of one edge alone, and shares need not add up.

Identity that the tests assert: an edge is two passes with hooks written by hand, for q, k, v, dynamic weights and
composition; a path is one such pass for every edge.

    patched = dcinterp.patch_path(model, "There are tea, meat, meat. Which is not meat? The", "L2H7.v")
    patched.table().head()                                     # which head's output this value reads the answer from
    dcinterp.patch_path(model, prompt, "L1H6.k", through=["L1H6 -> L1H6 (pre skip)", "L1H6 -> L1H1 (post kp)"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.circuit_graph import CircuitGraph, Edge
from dcinterp.mechanism.circuit_run import CircuitRun, Cut, Values, in_batches
from dcinterp.mechanism.patching import Direction, Pair, PairPatching, read_pair
from dcinterp.mechanism.prompt import Prompt, Token
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count


@dataclass(frozen=True)
class PathPatching(PairPatching):
    """What each edge into one receiver carries.

    receiver: what reads; through: the edges that its new value goes on along, all if there are none.
    edges: their names; logit_difference, share [edge]: as of all patching
    (dcinterp.mechanism.patching.PairPatching). together: the share with all of them patched.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {"logit_difference": ("edge",), "share": ("edge",)}

    receiver: str
    through: tuple[str, ...]
    edges: tuple[str, ...]
    together: float

    def labels(self, axis: str) -> list[str] | None:
        return list(self.edges) if axis == "edge" else None


@analysis(
    needs_decoder=True,
    title="Path patching",
    question="Which head reaches which query, key, value or dynamic weights, and by which composition edge?",
    guide="analyses/patching.md",
    example={"prompt": EXAMPLE_PROMPT, "receiver": "logits"},
)
def patch_path(
    bridge: Bridge,
    prompt: Prompt,
    receiver: str,
    counterfactual: Prompt | None = None,
    target: Token | None = None,
    foil: Token | None = None,
    *,
    through: list[str] | None = None,
    change: str = "question",
    direction: Direction = "denoising",
    at: int = -1,
    batch_size: Count = 32,
    progress: Progress = silent,
) -> PathPatching:
    """Patch every edge into one receiver, each alone.

    Args:
        bridge: over a decoder of dcinterp, plain or composed.
        prompt: the clean prompt: text, or token ids as in [5, 7, 9].
        receiver: what reads: "L2H7.q" (or k, v), "L1 post weights", "MLP 1" or "logits"; along composition edges
            "L1H1 attention" (of the `pre` stage: whose scores it uses) or "L1H1" (of `post`: whose attention).
        counterfactual, target, foil: as of `patch_stream`.
        through: names of the edges that the receiver's new value goes on along, as in "L1H6 -> L1H1 (post kp)".
        change: what the counterfactual of a task changes: question, source, relation, polarity or position.
        direction: "denoising" puts clean values into the counterfactual run, "noising" the other way round.
        at: the position whose next token is the answer.
        batch_size: edges of one pass; bounds the memory.
        progress: called with what the work takes before it begins, and after every batch.

    Cost: a row for every edge into the receiver and one for all, times 1 + the number of edges in `through`; each of
    about two forward passes.

    Raises:
        UserError: the model is not a decoder of dcinterp, there is no such receiver or edge, the edges are no path, or
            the prompts do not fit (see `patch_stream`).
    """
    run = CircuitRun(bridge)
    into = edges_into(run.graph, receiver)
    path = [run.graph.edges[run.graph.find(name)] for name in through or ()]
    require_path(run.graph, receiver, path)
    pair = read_pair(bridge, prompt, counterfactual, target, foil, change=change, at=at, direction=direction)
    patches = [[place] for place in into] + [list(into)]
    values = _sweep(run, pair, patches, [run.graph.find(edge.name) for edge in path], batch_size, progress)
    share = pair.share(values)
    return PathPatching(
        **pair.record(bridge),
        receiver=receiver,
        through=tuple(edge.name for edge in path),
        edges=tuple(run.graph.names[place] for place in into),
        logit_difference=values[:-1].float(),
        share=share[:-1].float(),
        together=float(share[-1]),
    )


def edges_into(graph: CircuitGraph, receiver: str) -> list[int]:
    """The places of the edges into a receiver in the list of all edges.

    Raises:
        UserError: there is no such receiver.
    """
    receivers = dict.fromkeys(edge.nodes[1] for edge in graph.edges)
    if receiver not in receivers:
        raise UserError(f"There is no receiver {receiver!r} in this model; {nearest(receiver, receivers)}")
    return [place for place, edge in enumerate(graph.edges) if edge.nodes[1] == receiver]


def require_path(graph: CircuitGraph, receiver: str, path: Sequence[Edge]) -> None:
    """Refuse edges that do not go on from a receiver, one after the other.

    Raises:
        UserError: an edge begins elsewhere than where the one before it leads.
    """
    reached = receiver
    for edge in path:
        starts = {reached, *(after for before, after in graph.inner_edges if before == reached)}
        if edge.nodes[0] not in starts:
            choices = [each.name for each in graph.edges if each.nodes[0] in starts]
            raise UserError(
                f"The path comes to {reached}, and the edge {edge.name!r} does not begin there; choose "
                + (f"one such as {choices[0]!r}." if choices else "a shorter path.")
            )
        reached = edge.nodes[1]


@torch.no_grad()
def _sweep(
    run: CircuitRun, pair: Pair, patches: list[list[int]], path: list[int], batch_size: int, progress: Progress
) -> Float[Tensor, " patch"]:
    """f with the edges of each patch carrying the other prompt's values, which go on along the path alone."""
    # What comes after the answer's position changes nothing there.
    end = pair.explanation.positions[0] + 1
    ids, source = pair.run[:, :end], run(pair.source[:, :end])[1]
    found, done = torch.zeros(len(patches), dtype=torch.float64), 0
    progress(0, len(patches), f"{len(patches) * (1 + len(path)):,} rows of {end:,} tokens")
    for some in in_batches(len(patches), batch_size):
        batch = patches[some]
        gates = source.written.new_ones(len(batch), run.graph.size)
        for row, places in zip(gates, batch, strict=True):
            row[places] = 0
        rows = ids.expand(len(batch), -1)
        logits, values = run(rows, Cut(gates, source.rows([0] * len(batch))))
        for edge in path:
            logits, values = _along(run, rows, edge, values)
        found[some] = pair.explanation.metric.at_places(logits[:, None]).cpu().double()  # type: ignore[attr-defined]
        done += len(batch)
        progress(done, len(patches), "edges")
    return found


def _along(run: CircuitRun, rows: Tensor, edge: int, before: Values) -> tuple[Tensor, Values]:
    """The run in which one edge carries what its source was in the run before, and nothing else does."""
    gates = before.written.new_ones(len(rows), run.graph.size)
    gates[:, edge] = 0
    return run(rows, Cut(gates, before))
