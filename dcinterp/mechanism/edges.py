r"""What composition edges are made of, and how a credit on composed entries is shared among them. No metric, no path.

One entry of a composed matrix is a sum over edges, one for every branch and lending head:

    P[h,t,s] = sum over branches c and heads f of  A[f,t,s] * C_c[f,h](t,s)

    C_skip = 1 on the diagonal + W_b          C_qp(t) = sum_r w_q1[t,r,f] w_q2[t,r,h]      C_qg(t) = diag w_qg[t]
                                              C_kp(s) = sum_r w_k1[s,r,f] w_k2[s,r,h]      C_kg(s) = diag w_kg[s]

A is the softmax in the `post` stage and the scores in the `pre` stage. With a credit G[h,t,s] for every composed entry
(its gradient, say) an edge gets sum over t, s of A * C_c * G; sums over edges are then sums of P * G, exactly.
The [head_from, head_to, query, key] tensor of all edges is never built: every branch is a product of small factors.

Two ways of composing have edges of another kind beside these (`beyond_scores`): what a head takes, through a static
map, from the scores of other pairs of tokens at an offset, or from those of the previous layer's heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, einsum

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.branches import BRANCHES, NAMES
from dcinterp.mechanism.head_maps import branch_map, composer_of
from dcinterp.mechanism.head_sites import read_values
from dcinterp.mechanism.rounding import alike
from dcinterp.model.compose.branches import ComposeWeights, beyond, beyond_labels, same_group
from dcinterp.shapes import HeadMap
from dcinterp.support.errors import UserError

Weights = Mapping[str, Float[Tensor, "..."]]


@dataclass(frozen=True)
class EdgeState:
    """One stage of one layer on one prompt: everything its edges are made of.

    attention: A, before composition; weights: w_q1, w_q2, w_k1, w_k2 [pos, rank, head] and w_qg, w_kg [pos, head], as
    far as the model has them; base: C_skip; groups: of heads that are composed among themselves only.
    values: what multiplies the composed entries, None in the `pre` stage; own: the tensor at hook_o_b, where that has a
    bias, which is no head's attention and so no edge. beyond: weights that read other pairs or the previous layer,
    where there are any, with the scores of that layer in them.
    """

    stage: str
    attention: Float[Tensor, "head query key"]
    weights: Weights
    base: HeadMap
    groups: int
    values: Float[Tensor, "key head d_head"] | None
    own: Float[Tensor, "head query key"] | None = None
    beyond: ComposeWeights | None = None


def site(bridge: Bridge, layer: int, stage: str) -> str:
    """The hook that all edges of a stage add up to: `hook_z` through the values, or the composed scores.

    Where a norm or a gate makes `hook_z`, it is what heads have read before it, `post.hook_read`.
    """
    read = f"blocks.{layer}.attn.post.hook_read"
    if stage == "post" and read in bridge.hook_dict:
        return read
    return f"blocks.{layer}.attn.{'hook_z' if stage == 'post' else 'pre.hook_out'}"


def layer_taps(bridge: Bridge, layer: int, stage: str) -> list[str]:
    """Names of the hooks that an `EdgeState` is read from, the site included."""
    own = [site(bridge, layer, stage)] + ([f"blocks.{layer}.attn.hook_v"] if stage == "post" else [])
    if stage not in stages_of(bridge):
        return [*own, f"blocks.{layer}.attn.hook_pattern"]
    prefix = f"blocks.{layer}.attn.{stage}.hook_"
    weights = composer_of(bridge, layer, stage).probe()
    own += [f"{prefix}o_b"] * (weights.bias is not None)
    own += [f"blocks.{layer - 1}.attn.{stage}.hook_out"] * (weights.previous is not None)
    return own + [name for name in bridge.hook_dict if name == f"{prefix}in" or name.startswith(f"{prefix}w_")]


def edge_state(bridge: Bridge, cache: Mapping[str, Tensor], layer: int, stage: str) -> EdgeState:
    """The state of one layer out of a cache that holds its `layer_taps`.

    In a model whose heads are not composed the only edges are those of every head to itself.
    """
    heads, composed = bridge.cfg.n_heads, stage in stages_of(bridge)
    prefix = f"blocks.{layer}.attn.{stage}.hook_"
    attention = cache[f"{prefix}in" if composed else f"blocks.{layer}.attn.hook_pattern"][0]
    base, groups = torch.eye(heads).to(attention), 1
    if composed:
        composer = composer_of(bridge, layer, stage)
        base, groups = composer.base_map().to(attention), composer.groups
    values = None
    if stage == "post":
        values = read_values(bridge, cache[f"blocks.{layer}.attn.hook_v"][0])
        # Grouped-query models share values among heads.
        values = values.repeat_interleave(heads // values.shape[1], dim=1)
        attention = attention.to(values.dtype)  # in half precision some models keep their pattern in float32
        if not composed:
            _require_product(attention, values, cache[site(bridge, layer, stage)][0], layer)
    weights = {name.removeprefix(prefix): cache[name][0] for name in cache if name.startswith(f"{prefix}w_")}
    own = cache[f"{prefix}o_b"][0] if composed and composer.has_bias else None
    beyond = None
    if composed and composer.reads_beyond:
        order = torch.ones(attention.shape[1:], dtype=torch.bool, device=attention.device).tril()
        beyond = composer.probe().within(order[None, None])
        before = f"blocks.{layer - 1}.attn.{stage}.hook_out"
        beyond = beyond.after(cache[before] if before in set(cache) else None)
    return EdgeState(stage, attention, weights, base, groups, values, own, beyond)


def _require_product(
    attention: Float[Tensor, "head query key"], values: Float[Tensor, "key head d_head"], z: Tensor, layer: int
) -> None:
    """UserError where heads of a model of others do not write their pattern times their values."""
    z = z.view(values.shape)
    if not alike(einsum("hts,shd->thd", attention, values), z):
        raise UserError(
            f"In layer {layer} what heads write is not their pattern times their values (hook_z beside hook_pattern "
            "and hook_v): a hook changes it, or this model does something in between. So its edges cannot be told."
        )


def head_map(state: EdgeState, branch: str) -> Float[Tensor, "*pos head_from head_to"]:
    """C of one branch: [pos, head_from, head_to] at the positions that choose it, [head_from, head_to] for the skip.

    Zero where the model has no such branch.
    """
    names, heads = BRANCHES[branch].weights, len(state.base)
    if not names:
        return state.base
    if any(name not in state.weights for name in names):
        return torch.zeros_like(state.base).expand(state.attention.shape[1], heads, heads)
    return branch_map([state.weights[name] for name in names], state.groups)


def composed(state: EdgeState) -> Float[Tensor, "head query key"]:
    """P, as the sum over all edges."""
    a = state.attention
    by_query = state.base + head_map(state, "qp") + head_map(state, "qg")
    by_key = head_map(state, "kp") + head_map(state, "kg")
    return einsum("fts,tfh->hts", a, by_query) + einsum("fts,sfh->hts", a, by_key)


def credit(state: EdgeState, gradient: Tensor) -> Float[Tensor, "head query key"]:
    """G, the gradient at the composed entries, from the (averaged) gradient at the `site` of the stage.

    Args:
        gradient: [query, head, d_head] at hook_z in the `post` stage; at the composed entries already in the `pre` one.
    """
    return gradient if state.values is None else einsum("thd,shd->hts", gradient, state.values)


def bias_credit(state: EdgeState, g: Float[Tensor, "head query key"]) -> Float[Tensor, " head_to"]:
    """sum over queries and keys of b[h] G[h,t,s]: the part of a head's credit that is no edge."""
    if state.own is None:
        return torch.zeros_like(state.base[0])
    return einsum("hts,hts->h", state.own - einsum("fts,fh->hts", state.attention, state.base), g)


def edge_scores(
    state: EdgeState, g: Float[Tensor, "head query key"]
) -> Float[Tensor, "branch head_from head_to source"]:
    """sum over queries of A[f,t,s] C_c[f,h](t,s) G[h,t,s], for every branch, pair of heads and source token.

    Cost: rank + 2 products over heads, each as large as composing once, and one copy of A and of G beside them.
    """
    a, w = state.attention, state.weights
    at_source = einsum("fts,hts->sfh", a, g)
    scores = {"skip": at_source * state.base}
    for branch in ("kp", "kg"):
        scores[branch] = at_source * head_map(state, branch)
    if "w_q1" in w and "w_q2" in w:
        # `low_rank_map` by its factors, a rank at a time: whole, every query would have its own map to sum over.
        by_rank = (
            einsum("fts,hts->sfh", a * w["w_q1"][:, r].T[:, :, None], g * w["w_q2"][:, r].T[:, :, None])
            for r in range(w["w_q1"].shape[1])
        )
        scores["qp"] = sum(by_rank, torch.zeros_like(at_source)) * same_group(len(a), state.groups, a)
    if "w_qg" in w:
        scores["qg"] = torch.diag_embed(einsum("hts,hts,th->sh", a, g, w["w_qg"]))
    none = torch.zeros_like(at_source)
    return torch.stack([scores.get(branch, none) for branch in NAMES]).permute(0, 2, 3, 1)


def beyond_names(state: EdgeState) -> list[str]:
    """What the last axis of `beyond_scores` stands for; empty where a pair's own attention is all that it takes."""
    return [] if state.beyond is None else beyond_labels(state.beyond)


def beyond_parts(state: EdgeState) -> Iterator[tuple[int, int, Float[Tensor, "head_to query key"]]]:
    """(place in `beyond_names`, head_from, what the edges to all heads add), one head_from at a time."""
    if state.beyond is None:
        return
    for place, (read, maps) in enumerate(beyond(state.attention[None], state.beyond)):
        for f in range(len(state.base)):
            if maps[f].any():
                yield place, f, read[0, f] * maps[f][:, None, None]


def beyond_scores(state: EdgeState, g: Float[Tensor, "head query key"]) -> Float[Tensor, "head_from head_to term"]:
    """What the sum over queries and keys of O_kq G + O_prev G is made of, by head and offset, or head before.

    Cost: for every term a product over heads.
    """
    scores = g.new_zeros(*state.base.shape, len(beyond_names(state)))
    if state.beyond is not None:
        for place, (read, maps) in enumerate(beyond(state.attention[None], state.beyond)):
            scores[..., place] = einsum("fts,hts->fh", read[0], g) * maps
    return scores


def edge_parts(state: EdgeState) -> Iterator[tuple[int, int, slice, Float[Tensor, "head_to query key"]]]:
    """(branch's place, head_from, heads_to, A C of the edges to these) of all edges that are not zero.

    One head_from at a time, so that no more than [head_to, query, key] is held.
    """
    a, heads = state.attention, len(state.base)
    for place, name in enumerate(NAMES):
        branch, maps = BRANCHES[name], head_map(state, name)
        if not maps.any():
            continue
        for f in range(heads):
            to = slice(f, f + 1) if len(branch.weights) == 1 else slice(0, heads)
            chosen = maps[..., f, to]
            if not chosen.any():
                continue
            if branch.side == "none":
                factor = chosen[:, None, None]
            else:
                factor = chosen.T[:, :, None] if branch.side == "query" else chosen.T[:, None, :]
            yield place, f, to, a[f] * factor


def edge_part(state: EdgeState, maps: Mapping[str, Tensor], name: str, head_from: int, head_to: int) -> Tensor:
    """What one edge adds at its site: [query, d_head] of hook_z ("post"), or [query, key] of the scores ("pre").

    maps: `head_map` of every branch that is asked for.
    """
    chosen, side = maps[name][..., head_from, head_to], BRANCHES[name].side
    if side != "none":
        chosen = chosen[:, None] if side == "query" else chosen[None, :]
    part = state.attention[head_from] * chosen
    return part if state.values is None else part @ state.values[:, head_to]
