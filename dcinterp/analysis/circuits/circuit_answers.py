r"""What the model answers when only the edges of a circuit are kept, and all others carry another prompt's values.

    f = (m(circuit) - m(none)) / (m(all) - m(none))        m = logit of the answer - that of the counterfactual's answer

The edges are those of `circuit`, which ranks them; here they are named, so that any circuit can be run: one from a
paper, one drawn by hand, or that of `circuit` with an edge taken out.

Source: the evaluation of the Mechanistic Interpretability Benchmark (Mueller et al. 2025, arXiv 2504.13151) for one
circuit; see dcinterp.analysis.circuits.faithfulness for its curve over sizes.

It does not show that the circuit works as the model does inside, nor on other prompts.

Identity that the tests assert: with all edges it is the model, with none the counterfactual prompt's run; with the
edges of a circuit the numbers of `circuit`.

    found = dcinterp.circuit(model, "same-person n=20", held_out=True)
    edges = [edge for edge, kept in zip(found.edges, found.kept) if kept]
    dcinterp.circuit_answers(model, "same-person n=20", edges, held_out=True).table()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.circuit_live import LiveCircuit
from dcinterp.mechanism.circuit_pairs import Counterfactual, ranked_and_measured, read_pairs
from dcinterp.mechanism.circuit_scores import FROM, Contrast
from dcinterp.mechanism.dataset import Examples
from dcinterp.mechanism.faithfulness import faithfulness_interval, faithfulness_of, way_warnings
from dcinterp.mechanism.prompt import token_text
from dcinterp.mechanism.statistics import count_distinct, few_examples, numbered
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.ranges import Count, Level
from dcinterp.support.text import interval_name


@dataclass(frozen=True)
class CircuitAnswers(Result):
    """What a circuit answers to every prompt.

    edges: the kept ones; idle: how many of them are on no path of kept edges from the embedding to the logits.
    answers, foils: the token that answers each prompt, and the one that answers its counterfactual.
    metric, patched, alone [example]: m of the model, with all edges patched, and with the circuit's edges alone kept.
    f [end]: with the ends of its interval over prompts: f, low, high.
    model_answers, top_tokens: the most likely next token of the model, and those with the circuit alone;
    probability [example, rank]: of the latter.
    repeats: of every prompt the number of its facts, one for those that repeat each other; None in what
    earlier versions saved.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "metric": ("example",),
        "patched": ("example",),
        "alone": ("example",),
        "probability": ("example", "rank"),
        "f": ("end",),
    }
    LISTS: ClassVar[dict[str, tuple[str, ...]]] = {
        **dict.fromkeys(("answers", "foils", "model_answers", "repeats"), ("example",)),
        "top_tokens": ("example", "rank"),
    }

    contrast: str
    level: float
    of: int
    idle: int
    edges: tuple[str, ...]
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    foils: tuple[str, ...]
    model_answers: tuple[str, ...]
    top_tokens: tuple[tuple[str, ...], ...]
    metric: Float[Tensor, " example"]
    patched: Float[Tensor, " example"]
    alone: Float[Tensor, " example"]
    probability: Float[Tensor, "example rank"]
    f: Float[Tensor, " end"]
    repeats: tuple[int, ...] | None = None

    def labels(self, axis: str) -> list[str] | None:
        return {"example": list(self.prompts), "end": ["f", "low", "high"]}.get(axis)

    @property
    def faithfulness(self) -> float:
        """f of the circuit on these prompts."""
        return float(self.f[0])

    @property
    def same(self) -> int:
        """In how many prompts the circuit's most likely token is the model's."""
        return sum(top[0] == mine for top, mine in zip(self.top_tokens, self.model_answers, strict=True))

    @property
    def right(self) -> int:
        """In how many prompts the circuit's most likely token is the answer."""
        return sum(top[0] == answer for top, answer in zip(self.top_tokens, self.answers, strict=True))

    def table(self) -> pd.DataFrame:
        """One row a prompt."""
        return pd.DataFrame(
            {
                "prompt": self.prompts,
                "answer": self.answers,
                "model": self.model_answers,
                "circuit": [top[0] for top in self.top_tokens],
                "probability": self.probability[:, 0].tolist(),
                "m (model)": self.metric.tolist(),
                "m (circuit)": self.alone.tolist(),
                "m (none)": self.patched.tolist(),
            }
        )

    def sentence(self) -> str:
        n = len(self.prompts)
        low, high = self.f[1:].tolist()
        interval = f" ({interval_name(self.level)} over prompts {low:.2f} to {high:.2f})" if low == low else ""
        return (
            f"With {len(self.edges):,} of {self.of:,} edges kept and the others patched from {FROM[self.contrast]}, f "
            f"is {self.faithfulness:.2f}{interval}: the mean of m is {float(self.alone.mean()):+.2f}, with all edges "
            f"{float(self.metric.mean()):+.2f}, with none {float(self.patched.mean()):+.2f}. The most likely token is "
            f"the model's in {self.same} of {n} prompts, and right in {self.right}."
        )

    def warnings(self) -> list[str]:
        sentences = few_examples(len(self.prompts), distinct=count_distinct(self.repeats))
        sentences += way_warnings(self.metric, self.patched, self.level, self.repeats)
        if self.idle:
            sentences.append(
                f"{self.idle} of the {len(self.edges)} edges are on no path of kept edges from the embedding to the "
                "logits, and carry no difference."
            )
        return sentences


@analysis(
    needs_decoder=True,
    title="Answers of a circuit",
    question="What does the model answer with only these edges?",
    guide="analyses/circuits.md",
    example={"examples": "task0 n=4", "edges": "embedding -> L0H0.v,L0H0 -> logits,embedding -> logits"},
    ignore=("ready",),
)
def circuit_answers(
    bridge: Bridge,
    examples: Examples,
    edges: list[str],
    *,
    counterfactual: Counterfactual = "any",
    contrast: Contrast = "counterfactual",
    held_out: bool = False,
    level: Level = 0.95,
    seed: int = 0,
    batch_size: Count = 16,
    ready: LiveCircuit | None = None,
) -> CircuitAnswers:
    """Run the model with only these edges kept, and read its answers.

    Args:
        bridge: over a decoder of dcinterp, plain or composed.
        examples, counterfactual, contrast: as of `circuit`.
        edges: the names of the kept edges, as in "L0H1 -> L1H2.v" or "L1H6 -> L1H1 (post kp)".
        held_out: only that half of the prompts on which `circuit` with `held_out` measures.
        level: confidence level of the interval over prompts.
        seed: seed of the bootstrap.
        batch_size: prompts of one run; bounds the memory.
        ready: what `ready_circuit` made of the same arguments, to save its cost where many circuits are run.

    Cost: five passes of every prompt; with `ready` about two.

    Raises:
        UserError: the model is not a decoder of dcinterp, there is no such edge, no example has a counterfactual, or
            one does not fit.
    """
    live = ready or ready_circuit(
        bridge, examples, counterfactual=counterfactual, contrast=contrast, held_out=held_out, batch_size=batch_size
    )
    graph = live.run.graph
    kept = torch.zeros(graph.size, dtype=torch.bool)
    kept[[graph.find(name) for name in dict.fromkeys(edges)]] = True
    found, whole, none = live.answer(kept), live.model, live.none
    groups = [pair.repeats for pair in live.pairs]
    seen = {*whole.top_ids[:, 0].tolist(), *found.top_ids.flatten().tolist()}
    seen |= {token for pair in live.pairs for token in (pair.target, pair.foil)}
    word = {token: token_text(bridge, token) for token in seen}
    f = faithfulness_of(found.metric[None], none.metric, whole.metric)
    ends = faithfulness_interval(found.metric[None], none.metric, whole.metric, level=level, seed=seed, groups=groups)
    return CircuitAnswers(
        contrast=contrast,
        level=level,
        of=graph.size,
        idle=int((kept & ~graph.connected(kept)).sum()),
        edges=tuple(name for name, keep in zip(graph.names, kept.tolist(), strict=True) if keep),
        prompts=tuple(pair.prompt for pair in live.pairs),
        answers=tuple(word[pair.target] for pair in live.pairs),
        foils=tuple(word[pair.foil] for pair in live.pairs),
        model_answers=tuple(word[token] for token in whole.top_ids[:, 0].tolist()),
        top_tokens=tuple(tuple(word[token] for token in row) for row in found.top_ids.tolist()),
        metric=whole.metric,
        patched=none.metric,
        alone=found.metric,
        probability=found.top_probability,
        f=torch.cat([f, *ends]).float(),
        repeats=numbered(groups),
    )


def ready_circuit(
    bridge: Bridge,
    examples: Examples,
    *,
    counterfactual: str = "any",
    contrast: str = "counterfactual",
    held_out: bool = False,
    batch_size: int = 16,
) -> LiveCircuit:
    """The prompts of `circuit_answers` held ready, for one circuit after another.

    Raises:
        UserError: as of `circuit_answers`.
    """
    pairs, _ = read_pairs(bridge, examples, counterfactual)
    return LiveCircuit(bridge, ranked_and_measured(pairs)[1] if held_out else pairs, contrast, batch_size)
