"""One entry of the attention matrices taken apart: what each head had, what it was lent, and what it ends up with.

    A'[h] = o_b[h] + o_qp[h] + o_kp[h] + o_qg[h] + o_kg[h]        at one (query, key) pair, for all heads

(the Compose equation of section 2 of the DCMHA paper; `stage` "pre" takes the scores apart, "post" the weights). The
dynamic weights that made the branches at this pair come along.

It does not show whether the entry matters for the answer: that is head attribution.

Identity that the tests assert: the branches add up to A' to 1e-6 in float32.

    terms = dcinterp.compose_breakdown(model, prompt, layer=1, query=-1, key=7)
    terms.out[3]                 # what head 3 multiplies the values at position 7 by
    terms.branches["o_kp"][3]    # the part of it that other heads lent, by the key's choice
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.branches import BRANCHES, HOOKS, WEIGHTS
from dcinterp.mechanism.head_maps import composer_of
from dcinterp.mechanism.memory import check_fits, slices
from dcinterp.mechanism.prompt import (
    Prompt,
    layer_number,
    pair_of,
    require_in_window,
    require_stage,
    str_tokens,
    token_ids,
)
from dcinterp.model.compose.branches import low_rank_map
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError
from dcinterp.support.former_names import warn_of

TERMS = HOOKS


@dataclass(frozen=True)
class ComposeBreakdown(Result):
    """All heads' attention from `query` to `key`, before (`a`), by branch and after (`out`) composition.

    w_q1, w_q2, w_k1, w_k2 are [rank, head], w_qg and w_kg [head]. A branch that the model lacks is all zero. groups: of
    heads that are composed among themselves only (1 in results of version 0.1).
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        **{name: ("head",) for name in ("a", *TERMS, "out", "w_qg", "w_kg")},
        **{name: ("rank", "head") for name in WEIGHTS[:4]},
    }

    tokens: tuple[str, ...]
    layer: int
    stage: str
    query: int
    key: int
    a: Float[Tensor, " head"]
    o_b: Float[Tensor, " head"]
    o_qp: Float[Tensor, " head"]
    o_kp: Float[Tensor, " head"]
    o_qg: Float[Tensor, " head"]
    o_kg: Float[Tensor, " head"]
    out: Float[Tensor, " head"]
    w_q1: Float[Tensor, "rank head"]
    w_q2: Float[Tensor, "rank head"]
    w_k1: Float[Tensor, "rank head"]
    w_k2: Float[Tensor, "rank head"]
    w_qg: Float[Tensor, " head"]
    w_kg: Float[Tensor, " head"]
    groups: int = 1

    @property
    def branches(self) -> dict[str, Float[Tensor, " head"]]:
        """The terms of the sum by name."""
        return {name: getattr(self, name) for name in TERMS}

    @property
    def has_map_of_all_tokens(self) -> bool:
        """Whether the base is neither each head's own entry nor nothing: then one map for all tokens mixes heads."""
        return bool(self.o_b.any()) and not torch.equal(self.o_b, self.a)

    def table(self) -> pd.DataFrame:
        """One row a head: its entry before composition, what every branch adds, and what it ends up with."""
        terms = {"before": self.a, **self.branches, "after": self.out}
        return pd.DataFrame({"head": range(len(self.a)), **{name: term.tolist() for name, term in terms.items()}})

    def shared(self, side: str = "key") -> Float[Tensor, "head_from head_to"]:
        """What each head's attention adds to each other head through the low-rank branch of one side.

        shared[f, h] = A[f] * sum_r w_1[r, f] w_2[r, h], inside groups of heads; its columns add up to o_kp (`side`
        "key") or o_qp ("query").
        """
        w1, w2 = (getattr(self, name) for name in BRANCHES[f"{side[0]}p"].weights)
        return self.a[:, None] * low_rank_map(w1, w2, self.groups)

    def sharing_side(self, head_from: int, head_to: int) -> str:
        """ "query" or "key": the token by whose dynamic weights one head shares most attention with another."""
        return max(("query", "key"), key=lambda side: abs(float(self.shared(side)[head_from, head_to])))

    def strongest_sharing(self) -> tuple[int, int]:
        """(head_from, head_to) between which most attention is shared, by the weights of both tokens together."""
        moved = (self.shared("key") + self.shared("query")).abs().fill_diagonal_(0)
        head_from, head_to = divmod(int(moved.argmax()), len(moved))
        return head_from, head_to

    def lent(self, side: str = "key") -> Float[Tensor, "head_from head_to"]:
        """The former name of `shared`."""
        warn_of("lent", "shared")
        return self.shared(side)


@analysis(
    title="Composition of one attention entry, branch by branch",
    needs_composition=True,
    question="What is a head's attention to one token made of?",
    guide="analyses/compose-breakdown.md",
    example={"prompt": EXAMPLE_PROMPT, "layer": "1", "query": "-1", "key": "4"},
)
def compose_breakdown(
    bridge: Bridge, prompt: Prompt, layer: int, query: int, key: int, stage: str = "post"
) -> ComposeBreakdown:
    """Take the composition of all heads apart at one (query, key) pair.

    Args:
        bridge: a bridge over a DCFormer.
        prompt: text, or token ids as in [5, 7, 9].
        layer: the layer; negative counts from the last.
        query: the position that attends; negative counts from the end.
        key: the position attended to, not after `query`.
        stage: "pre" for scores, "post" for weights.

    Cost: one forward pass that takes one stage of one layer apart (see dcinterp.mechanism.memory) and keeps the pair.

    Raises:
        UserError: the model does not compose at that stage, a position or layer does not exist, or memory is short.
    """
    require_stage(bridge, stage)
    ids = token_ids(bridge, prompt)
    layer = layer_number(bridge, layer)
    if (composer := composer_of(bridge, layer, stage)).reads_beyond:
        raise UserError(
            f"The composer {composer.name!r} takes something from other pairs of tokens or from the previous layer at "
            f"the stage {stage!r} of layer {layer}, which is no sum over the heads of one pair; use attribute_edges "
            f"with stage={stage!r}, which scores it too."
        )
    query, key = pair_of(query, key, ids.shape[1])
    if stage == "pre":  # after the softmax its zeros are true
        require_in_window(bridge, layer, query, key)
    check_fits(bridge, ids.shape[1], what=f"Taking layer {layer} apart")
    prefix = f"blocks.{layer}.attn.{stage}.hook_"
    pair = (0, slice(None), query, key)
    matrices = [name for name in ("in", "out", *TERMS) if prefix + name in bridge.hook_dict]
    dynamic = [name for name in WEIGHTS if prefix + name in bridge.hook_dict]
    wanted = {prefix + name: pair for name in matrices}
    taps = slices(bridge, ids, wanted | {prefix + n: (0, query if n[2] == "q" else key) for n in dynamic})
    heads = bridge.cfg.n_heads
    entry = {name: taps[prefix + name] for name in matrices}
    weights = {name: taps[prefix + name] for name in dynamic}
    rank = next((w.shape[0] for name, w in weights.items() if name[-1] in "12"), 1)
    terms: dict[str, Any] = {name: entry.get(name, torch.zeros(heads)) for name in TERMS}
    pairs: dict[str, Any] = {name: weights.get(name, torch.zeros(rank, heads)) for name in WEIGHTS[:4]}
    gates: dict[str, Any] = {name: weights.get(name, torch.zeros(heads)) for name in WEIGHTS[4:]}
    return ComposeBreakdown(
        tokens=str_tokens(bridge, ids),
        layer=layer,
        stage=stage,
        query=query,
        key=key,
        a=entry["in"],
        out=entry["out"],
        groups=composer_of(bridge, layer, stage).groups,
        **terms,
        **pairs,
        **gates,
    )
