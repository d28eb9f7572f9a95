r"""The one definition of composing attention matrices; every faster path is a wrapper compared with it.

    Compose(A, X_q, X_k) = O_b + O_qp + O_kp + O_qg + O_kg

    O_b        = A (the skip) and/or W_b applied over heads (static composition), and a bias where there is one
    O_qp[h']   = sum_r w_q2[t,r,h'] sum_h w_q1[t,r,h] A[h]      low rank, from the query position t
    O_kp[h']   = the same with w_k1, w_k2 at the key position s
    O_qg[h]    = w_qg[t,h] A[h]                                 gate, from the query position
    O_kg[h]    = w_kg[s,h] A[h]                                 gate, from the key position

(section 2 of the DCMHA paper.) A is [batch, head, query, key]: scores in the `pre` stage, weights in the `post` stage.
With groups, the sums over h stay inside the group of h'. How the terms are called is in `branch_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, einsum

from dcinterp.model.compose.branch_table import BRANCHES, DYNAMIC_WEIGHTS
from dcinterp.shapes import Attention, Gate, HeadMap, LowRank, Mask


@dataclass(frozen=True)
class ComposeWeights:
    """Everything one stage needs to compose; None where the model has no such branch.

    w_q1, w_q2 [batch, query, rank, head] and w_qg [batch, query, head] belong to the query positions, w_k1, w_k2 and
    w_kg to the key positions; `static` is W_b [head_from, head_to]. `bias` is added to every entry of a head where a
    query may look (`within` says where; everywhere by itself): it is nobody's attention, and no edge.
    """

    w_q1: Float[Tensor, "batch query rank head"] | None = None
    w_q2: Float[Tensor, "batch query rank head"] | None = None
    w_qg: Float[Tensor, "batch query head"] | None = None
    w_k1: Float[Tensor, "batch key rank head"] | None = None
    w_k2: Float[Tensor, "batch key rank head"] | None = None
    w_kg: Float[Tensor, "batch key head"] | None = None
    static: HeadMap | None = None
    skip: bool = True
    groups: int = 1
    bias: Float[Tensor, " head"] | None = None
    seen: Mask | None = None

    def dynamic(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of the dynamic weights that exist."""
        for name in DYNAMIC_WEIGHTS:
            if (value := getattr(self, name)) is not None:
                yield name, value

    def of(self, branch: str) -> tuple[Tensor, ...]:
        """The dynamic weights of one branch, by its name in `BRANCHES`; empty where the model has no such branch."""
        found = [getattr(self, name) for name in BRANCHES[branch].weights]
        return () if any(weight is None for weight in found) else tuple(found)

    def with_dynamic(self, change: Callable[[str, Tensor], Tensor]) -> ComposeWeights:
        """A copy whose dynamic weights are `change(name, weight)`."""
        new: dict[str, Any] = {name: change(name, weight) for name, weight in self.dynamic()}
        return replace(self, **new)

    def within(self, mask: Mask | None) -> ComposeWeights:
        """A copy that adds nothing where `mask` is False; needed by no term that is made of attention."""
        return self if self.bias is None else replace(self, seen=mask)

    def without_bias(self) -> ComposeWeights:
        """A copy that is a map over heads and nothing else."""
        return self if self.bias is None else replace(self, bias=None)


def same_group(heads: int, groups: int, like: Tensor | None = None) -> HeadMap:
    """1 where two heads are of one group, so that one may be composed with the other at all; of the type of `like`."""
    size = heads // groups
    ones = torch.ones(groups, size, size) if like is None else like.new_ones(groups, size, size)
    return torch.block_diag(*ones)


def low_rank_map(w1: Tensor, w2: Tensor, groups: int = 1) -> Float[Tensor, "*pos head_from head_to"]:
    """sum_r w_1[r, from] w_2[r, to], inside groups of heads: the map over heads that a low-rank branch is.

    Args:
        w1, w2: [*pos, rank, head]; with the two exchanged, the map comes out as [head_to, head_from].
        groups: as in `ComposeWeights`.
    """
    product = w1.transpose(-1, -2) @ w2
    return product if groups == 1 else product * same_group(w1.shape[-1], groups, product)


def low_rank(a: Attention, w1: LowRank, w2: LowRank, axis: str, groups: int = 1) -> Attention:
    """O_qp (`axis` "query") or O_kp (`axis` "key"): gather the heads of A with w1, share the result with w2.

    This is `low_rank_map` applied to A by its factors: a map for every position would be heads / rank times as large.
    """
    # g: group, h: head of the group, r: rank, t: query, s: key; p is the position that the weights belong to.
    p = {"query": "t", "key": "s"}[axis]
    grouped, w1, w2 = (x.unflatten(d, (groups, -1)) for x, d in ((a, 1), (w1, 3), (w2, 3)))
    gathered = einsum(f"bghts,b{p}rgh->bgrts", grouped, w1)
    return einsum(f"bgrts,b{p}rgh->bghts", gathered, w2).flatten(1, 2)


def gate(a: Attention, w: Gate, axis: str) -> Attention:
    """O_qg (`axis` "query") or O_kg (`axis` "key"): every head of A scaled by its own weight."""
    per_head = w.transpose(1, 2)
    return a * (per_head.unsqueeze(3) if axis == "query" else per_head.unsqueeze(2))


def base(a: Attention, w: ComposeWeights) -> Attention | None:
    """O_b: A itself, A mixed by the static map, a bias, the sum of those that the model has, or None."""
    own = a if w.skip else None
    if w.static is not None:
        mixed = einsum("bfts,fo->bots", a, w.static)
        own = mixed if own is None else own + mixed
    if w.bias is not None:
        added = w.bias[:, None, None].expand_as(a)
        added = added if w.seen is None else added.masked_fill(~w.seen, 0)
        own = added if own is None else own + added
    return own


def branches(a: Attention, w: ComposeWeights) -> dict[str, Attention]:
    """The terms of Compose(A) that exist in this model, by their hooks, in the order of `BRANCHES`."""
    terms: dict[str, Attention] = {}
    if (o_b := base(a, w)) is not None:
        terms[BRANCHES["skip"].hook] = o_b
    for branch in BRANCHES.values():
        match w.of(branch.name):
            case w1, w2:
                terms[branch.hook] = low_rank(a, w1, w2, branch.side, w.groups)
            case (wg,):
                terms[branch.hook] = gate(a, wg, branch.side)
    return terms


def compose(a: Attention, w: ComposeWeights, taps: Any = None) -> Attention:
    """Compose(A) = the sum of its branches.

    Args:
        a: scores or weights of all heads.
        w: the weights of this stage.
        taps: an object with callables `hook_in`, `hook_out`, `hook_<branch>` and `hook_<weight>`; each is called with
            the tensor of that name, and what it returns takes the tensor's place. None runs without looking.
    """
    if taps is None:
        return _total(branches(a, w), a)
    a = taps.hook_in(a)
    w = w.with_dynamic(lambda name, weight: getattr(taps, f"hook_{name}")(weight))
    terms = branches(a, w)
    if terms.get("o_b") is a:
        # An in-place edit at hook_o_b must not reach A, which every other branch was made from.
        terms["o_b"] = a.clone()
    return taps.hook_out(_total({name: getattr(taps, f"hook_{name}")(term) for name, term in terms.items()}, a))


def _total(terms: dict[str, Attention], a: Attention) -> Attention:
    return torch.stack(list(terms.values())).sum(0) if len(terms) > 1 else next(iter(terms.values()), a * 0)


def head_maps(w: ComposeWeights) -> tuple[Float[Tensor, "batch query head_to head_from"] | None, Tensor | None]:
    """The maps over heads that the branches amount to: Compose(A)[h', t, s] = sum_h (M_t + N_s)[h', h] A[h, t, s].

    Returns:
        M [batch, query, head_to, head_from], which holds the skip, the static map, O_qp and O_qg, and
        N [batch, key, head_to, head_from], which holds O_kp and O_kg; None for a side without any branch.
    """
    return _side_map(w, w.w_q1, w.w_q2, w.w_qg, with_base=True), _side_map(w, w.w_k1, w.w_k2, w.w_kg, with_base=False)


def _side_map(
    w: ComposeWeights, w1: LowRank | None, w2: LowRank | None, wg: Gate | None, *, with_base: bool
) -> Tensor | None:
    parts: list[Tensor] = []
    if w1 is not None and w2 is not None:
        # Exchanged, because rows are the heads that receive: the map stands on the left of A.
        parts.append(low_rank_map(w2, w1, w.groups))
    if wg is not None:
        parts.append(torch.diag_embed(wg))
    if with_base and w.static is not None:
        parts.append(w.static.T[None, None])
    total = sum(parts[1:], parts[0]) if parts else None
    if with_base and w.skip and total is not None:
        total = total + torch.eye(total.shape[-1], device=total.device, dtype=total.dtype)
    return total
