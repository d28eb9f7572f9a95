r"""The map over heads averaged over a dataset: what composition does as a rule, and how much of it depends on tokens.

    W[t, s] = base + query part[t] + key part[s];   total = mean of W over pairs (t, s), s <= t, then over examples
    spread = standard deviation of W over all pairs of all examples
    lent[f, h] = mean over queries t of sum_s A_f[t, s] (W_fh[t, s] - skip)

`queries` "last" takes the last position of every prompt, where the answer is made, "all" takes every position. A mean
near zero with a large spread is a map that switches; a mean with a small spread might as well be a static map. `lent`
weighs the map by the attention there is to lend: how much of f's attention arrives at h, per query.

Source: W_ij of section 2 of the DCMHA paper; its averages over pairs and prompts, and `lent`, are ours.

Pairs are those that the layer sees: in a local layer, of its window. It does not show that what is lent matters for an
answer: that is edge attribution.

Identity that the tests assert: `lent` of all lenders adds up to what composition adds to a head's row sums in the
model's own hooks.

    mean = dcinterp.mean_composition_map(model, "different-in-set n=50", layer=1, stage="post")
    mean.total, mean.low, mean.high, mean.spread      # [head_from, head_to]
    [motif.sentence for motif in mean.motifs()]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.branches import BRANCHES, FORMER_PARTS, PARTS
from dcinterp.mechanism.dataset import Examples, read_questions, repeats
from dcinterp.mechanism.head_maps import MapOfParts, beyond_warnings, composer_of, position_maps
from dcinterp.mechanism.motifs import MANY, SHARE, Motif, find_motifs
from dcinterp.mechanism.prompt import layer_number, require_stage, token_ids
from dcinterp.mechanism.statistics import bootstrap_interval, few_examples
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.shapes import TokenIds
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, all_once, silent
from dcinterp.support.ranges import Level
from dcinterp.support.wide import wide

Queries = Literal["last", "all"]


@dataclass(frozen=True)
class MeanCompositionMap(MapOfParts, Result):
    """Maps [head_from, head_to] over n examples: the mean whole and by part, its interval, the spread, what is lent.

    low, high: bootstrap interval of `total` over examples. lent and its interval are zero for stage "pre", whose scores
    are no amounts. skip: whether the base holds the identity. pairs: how many (query, key) pairs were counted.
    distinct: how many sets of facts they hold (None: not known, of an earlier version).
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        name: ("head_from", "head_to")
        for name in ("total", "low", "high", "spread", "shared", "shared_low", "shared_high", *PARTS)
    }
    FORMER: ClassVar[dict[str, str]] = FORMER_PARTS | {
        "lent": "shared",
        "lent_low": "shared_low",
        "lent_high": "shared_high",
    }

    n: int
    pairs: int
    layer: int
    stage: str
    queries: str
    level: float
    skip: bool
    tasks: tuple[str, ...]
    total: Float[Tensor, "head_from head_to"]
    low: Float[Tensor, "head_from head_to"]
    high: Float[Tensor, "head_from head_to"]
    spread: Float[Tensor, "head_from head_to"]
    shared: Float[Tensor, "head_from head_to"]
    shared_low: Float[Tensor, "head_from head_to"]
    shared_high: Float[Tensor, "head_from head_to"]
    base: Float[Tensor, "head_from head_to"]
    qp: Float[Tensor, "head_from head_to"]
    qg: Float[Tensor, "head_from head_to"]
    kp: Float[Tensor, "head_from head_to"]
    kg: Float[Tensor, "head_from head_to"]
    distinct: int | None = None
    beyond: str = ""

    def motifs(self, *, share: float = SHARE, many: int = MANY) -> tuple[Motif, ...]:
        """The motifs of the mean map, from entries whose interval leaves out zero (see dcinterp.mechanism.motifs)."""
        skip = torch.eye(len(self.total)) if self.skip else torch.zeros_like(self.total)
        sure = (self.low - skip > 0) | (self.high - skip < 0)
        return find_motifs(self.added * sure, share=share, many=many)

    def warnings(self) -> list[str]:
        return [*beyond_warnings(self.beyond, self.stage), *few_examples(self.n, self.low, self.distinct)]

    def table(self) -> pd.DataFrame:
        """One row an entry of the map, the largest added ones first."""
        heads = len(self.total)
        index = [(f, h) for f in range(heads) for h in range(heads)]
        frame = pd.DataFrame(index, columns=["head_from", "head_to"])
        frame["added"] = self.added.flatten().tolist()
        for name in ("total", "low", "high", "spread", "shared", "shared_low", "shared_high"):
            frame[name] = getattr(self, name).flatten().tolist()
        return frame.sort_values("added", key=abs, ascending=False, ignore_index=True)


@analysis(
    title="Map over heads, averaged over a dataset",
    needs_composition=True,
    question="Which heads share with which on the average, and how much depends on the tokens?",
    guide="analyses/composition-maps.md",
    in_units=True,
    example={"examples": "same-person n=2", "layer": "1"},
)
def mean_composition_map(
    bridge: Bridge,
    examples: Examples,
    layer: int,
    stage: str = "post",
    *,
    queries: Queries = "last",
    level: Level = 0.95,
    seed: int = 0,
    progress: Progress = silent,
) -> MeanCompositionMap:
    """The head-to-head map of one stage averaged over the pairs of positions of many prompts.

    Args:
        bridge: a bridge over a DCFormer.
        examples: a text such as "same-person n=50", or a list of examples; see dcinterp.mechanism.dataset. Only the
            prompts count, but each comes with an answer, as in the other analyses over examples.
        layer: the layer; negative counts from the last.
        stage: "pre" for scores, "post" for weights.
        queries: "last" for the position that answers, "all" for every position.
        level: confidence level of the intervals over examples.
        seed: seed of the bootstrap.
        progress: called after each example.

    Cost: per example one forward that keeps one stage's dynamic weights and input; memory 4 * pos * heads^2 numbers.

    Raises:
        UserError: the model does not compose at that stage, there is no such layer, or an example does not fit.
    """
    require_stage(bridge, stage)
    if queries not in ("last", "all"):
        raise UserError(f"There are no queries {queries!r}; choose 'last' or 'all'.")
    layer = layer_number(bridge, layer)
    asked = read_questions(bridge, examples)
    every = [token_ids(bridge, question.prompt) for question in asked]
    units = [(f"example {n + 1}", partial(_sums, bridge, ids, layer, stage, queries)) for n, ids in enumerate(every)]
    made = all_once(progress, units)
    composer = composer_of(bridge, layer, stage)
    base = composer.base_map().float()
    parts = {"base": base} | {name: torch.stack([m.parts[name] / m.pairs for m in made]).mean(0) for name in PARTS[1:]}
    totals = base + torch.stack([sum(m.parts.values()) / m.pairs for m in made])  # type: ignore[misc]
    groups = repeats(bridge, asked)
    low, high = bootstrap_interval(totals, level=level, seed=seed, groups=groups)
    shared = torch.stack([m.shared for m in made])
    shared_low, shared_high = bootstrap_interval(shared, level=level, seed=seed, groups=groups)
    pairs = sum(m.pairs for m in made)
    dynamic = sum(sum(m.parts.values()) for m in made) / pairs
    variance = sum(m.squares for m in made) / pairs - dynamic**2
    shown: dict[str, Any] = {name: part.float() for name, part in parts.items()}
    return MeanCompositionMap(
        n=len(made),
        pairs=pairs,
        layer=layer,
        stage=stage,
        queries=queries,
        level=level,
        skip=bool(composer.skip),
        tasks=tuple(sorted({question.task for question in asked})),
        total=totals.mean(0).float(),
        low=low.float(),
        high=high.float(),
        spread=variance.clamp(min=0).sqrt().float(),
        shared=shared.mean(0).float(),
        shared_low=shared_low.float(),
        shared_high=shared_high.float(),
        distinct=len(set(groups)),
        beyond=composer.name if composer.reads_beyond else "",
        **shown,
    )


class _Sums(NamedTuple):
    """Sums over the pairs of one prompt: each part, the squares of the dynamic map; `lent` is a mean over queries."""

    parts: dict[str, Tensor]
    squares: Tensor
    shared: Tensor
    pairs: int


def _sums(bridge: Bridge, ids: TokenIds, layer: int, stage: str, queries: str) -> _Sums:
    composer, heads, length = composer_of(bridge, layer, stage), bridge.cfg.n_heads, ids.shape[1]
    maps = {name: wide(each) for name, each in position_maps(bridge, ids, layer, stage).items()}
    q, k = maps["qp"] + maps["qg"], maps["kp"] + maps["kg"]
    at = torch.arange(length - 1, length) if queries == "last" else torch.arange(length)
    # A query at t pairs with keys 0..t, or the last of these in a local layer; a key with the queries that see it.
    first = (at + 1 - (bridge.original_model.config.window(layer) or length)).clamp(min=0)
    keys = torch.arange(length)[:, None]
    keys_of, queries_of = (at + 1 - first).double(), ((first <= keys) & (keys <= at)).sum(1).double()
    to = torch.cat([torch.zeros_like(k[:1]), k.cumsum(0)])
    parts = {}
    for name in PARTS[1:]:
        counts, values = (keys_of, maps[name][at]) if BRANCHES[name].side == "query" else (queries_of, maps[name])
        parts[name] = torch.einsum("p,pft->ft", counts, values)
    squares = (
        torch.einsum("p,pft->ft", keys_of, q[at] ** 2)
        + torch.einsum("p,pft->ft", queries_of, k**2)
        + 2 * (q[at] * (to[at + 1] - to[first])).sum(0)
    )
    shared = torch.zeros(heads, heads, dtype=torch.float64)
    if stage == "post":
        a = _input(bridge, ids, f"blocks.{layer}.attn.post.hook_in", at)
        fixed = composer.base_map().float().double() - (torch.eye(heads) if composer.skip else 0)
        shared = (
            torch.einsum("fqk,ft->ft", a, fixed)
            + torch.einsum("fqk,qft->ft", a, q[at])
            + torch.einsum("fqk,kft->ft", a, k)
        ) / len(at)
    return _Sums(parts, squares, shared, int(keys_of.sum()))


def _input(bridge: Bridge, ids: TokenIds, name: str, at: Tensor) -> Float[Tensor, "head query key"]:
    """Attention weights before composition at the chosen queries."""
    with torch.no_grad():
        _, cache = bridge.run_with_cache(ids, names_filter=[name])
    return cache[name][0][:, at.to(cache[name].device)].cpu().double()
