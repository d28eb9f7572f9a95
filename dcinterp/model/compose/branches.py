r"""The one definition of composing attention matrices; every faster path is a wrapper compared with it.

    Compose(A, X_q, X_k) = O_b + O_qp + O_kp + O_qg + O_kg

    O_b        = A (the skip) and/or W_b applied over heads (static composition), and a bias where there is one
    O_qp[h']   = sum_r w_q2[t,r,h'] sum_h w_q1[t,r,h] A[h]      low rank, from the query position t
    O_kp[h']   = the same with w_k1, w_k2 at the key position s
    O_qg[h]    = w_qg[t,h] A[h]                                 gate, from the query position
    O_kg[h]    = w_kg[s,h] A[h]                                 gate, from the key position

(section 2 of the DCMHA paper), and in models that have them

    O_kq[h',t,s]   = sum over i, j and h of conv[h',h,i,j] A[h, t-i, s-j]     from the pairs around, 0 where hidden
    O_prev[h',t,s] = sum over h of previous[h,h'] B[h,t,s]                    from the layer before

with i from 0, j around 0, and B the composed scores of the layer before. A is [batch, head, query, key]: scores in the
`pre` stage, weights in the `post` stage. With groups, the sums over h stay inside the group of h' (and W_b and previous
are block diagonal). How the terms are called is in `branch_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, einsum
from torch.nn.functional import conv2d, pad

from dcinterp.model.compose.branch_table import BRANCHES, DYNAMIC_WEIGHTS, NEIGHBOURS, PREVIOUS, PREVIOUS_LAYER
from dcinterp.shapes import Attention, Gate, HeadMap, LowRank, Mask
from dcinterp.support.errors import UserError


@dataclass(frozen=True)
class ComposeWeights:
    """Everything one stage needs to compose; None where the model has no such branch.

    w_q1, w_q2 [batch, query, rank, head] and w_qg [batch, query, head] belong to the query positions, w_k1, w_k2 and
    w_kg to the key positions; `static` is W_b [head_from, head_to]. `bias` is added to every entry of a head where a
    query may look (`within` says where; everywhere by itself): it is nobody's attention, and no edge. `conv` makes
    O_kq, within groups of heads; its middle, i = j = 0, is zero, because that is part of `static`. `previous` makes
    O_prev of `before`, the composed scores of the layer before (`after` says which).
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
    conv: Float[Tensor, "head_to group_head query_tap key_tap"] | None = None
    seen: Mask | None = None
    previous: HeadMap | None = None
    before: Float[Tensor, "#batch head query key"] | None = None

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
        """A copy that reads and adds nothing where `mask` is False; the other terms are made of the pair itself."""
        return self if self.bias is None and self.conv is None else replace(self, seen=mask)

    def after(self, before: Attention | None) -> ComposeWeights:
        """A copy that reads `before`, the composed scores of the previous layer, if it reads any."""
        return self if self.previous is None else replace(self, before=before)

    def taps_back(self) -> int:
        """How many earlier queries a query reads the scores of."""
        return 0 if self.conv is None else self.conv.shape[2] - 1

    def reads_beyond(self) -> bool:
        """Whether a pair takes something from other pairs or from another layer: no map over heads says all then."""
        return self.conv is not None or self.previous is not None

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


def neighbours(
    a: Attention, conv: Float[Tensor, "head_to group_head query_tap key_tap"], groups: int, seen: Mask | None
) -> Attention:
    """O_kq: tap (i, j) reads i queries back, and j - floor(key_tap / 2) keys back, inside groups of heads."""
    queries, keys = conv.shape[2:]
    if a.numel() == 0:
        return a
    visible = a if seen is None else a.masked_fill(~seen, 0)
    # A convolution of torch goes forwards, from the pair furthest back.
    padded = pad(visible, (keys - 1 - keys // 2, keys // 2, queries - 1, 0))
    out = conv2d(padded, conv.flip(2, 3), groups=groups)
    return out if seen is None else out.masked_fill(~seen, 0)


def earlier(a: Attention, previous: HeadMap, before: Float[Tensor, "#batch head query key"] | None) -> Attention:
    """O_prev, of as many rows as `a`.

    Raises:
        UserError: the scores of the previous layer are not there.
    """
    if before is None:
        raise UserError(
            "This layer reads the scores of the layer before it, which did not run; run the model from its first layer."
        )
    # A batch may have parted into rows after the previous layer.
    return einsum("bfts,fo->bots", before, previous).expand_as(a)


def beyond(a: Attention, w: ComposeWeights) -> Iterator[tuple[Attention, HeadMap]]:
    """O_kq and O_prev in parts, in the order of `beyond_labels`: (what is read, the map over heads that it takes).

    What is read is [batch, head, query, key], where the part adds something: A moved by an offset, or B.
    """
    if w.conv is not None:
        visible = a if w.seen is None else a.masked_fill(~w.seen, 0)
        (length, width), (queries, keys) = a.shape[2:], w.conv.shape[2:]
        # [head_to, group_head, ...] as [head_from, head_to, ...]
        maps = w.conv.unflatten(0, (w.groups, -1)).movedim(2, 1)
        padded = pad(visible, (keys, keys, queries, 0))
        for i, j in offsets(queries, keys):
            moved = padded[:, :, queries - i : queries - i + length, keys - j : keys - j + width]
            moved = moved if w.seen is None else moved.masked_fill(~w.seen, 0)
            yield moved, torch.block_diag(*maps[..., i, j + keys // 2])
    if w.previous is not None and w.before is not None:
        yield w.before.expand_as(a), w.previous


def offsets(queries: int, keys: int) -> list[tuple[int, int]]:
    """(queries back, keys back) of the taps of a convolution, but the pair itself; fewer than 0 back are ahead."""
    back = range(-(keys // 2), keys - keys // 2)
    return [(i, j) for i in range(queries) for j in back if (i, j) != (0, 0)]


def beyond_labels(w: ComposeWeights) -> list[str]:
    """Names of the parts of O_kq and O_prev: "query -1, key +2" is read one query back and two keys ahead."""
    around = [] if w.conv is None else offsets(*w.conv.shape[2:])
    return [f"query {f'{-i:+d}' if i else 0}, key {f'{-j:+d}' if j else 0}" for i, j in around] + [PREVIOUS_LAYER] * (
        w.previous is not None
    )


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
    if w.conv is not None:
        terms[NEIGHBOURS] = neighbours(a, w.conv, w.groups, w.seen)
    if w.previous is not None:
        terms[PREVIOUS] = earlier(a, w.previous, w.before)
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
    return query_map(w), _side_map(w, w.w_k1, w.w_k2, w.w_kg, with_base=False)


def query_map(w: ComposeWeights) -> Float[Tensor, "#batch #query head_to head_from"] | None:
    """M of `head_maps`, which holds the skip, the static map, O_qp and O_qg; None where none but the skip exists."""
    return _side_map(w, w.w_q1, w.w_q2, w.w_qg, with_base=True)


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
