"""The true effects of edges: remove them from the composed attention (or scores), one by one, and run the model again.

    effect = f(model) - f(model without the part)            f: logit of the target minus that of the foil

Every [query, key] entry of every edge is written out, which fits only because planted models are tiny; the analyses
of real models do it in slices (`dcinterp.attribute_edges`). This is an independent implementation, to compare with.
What the rest of the model computes from the change is computed anew, dynamic weights of later layers included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, einsum

from dcinterp.bridge.protocol import Bridge
from dcinterp.model.compose.branch_table import BRANCHES, NAMES

WEIGHTS = tuple(weight for branch in BRANCHES.values() for weight in branch.weights)
assert NAMES == ("skip", "qp", "kp", "qg", "kg"), "edges_of_layer stacks them in this order"

Edges = Float[Tensor, "branch head_from head_to query key"]
"""What the attention of head_from adds to the composed attention of head_to; zero for branches without weights."""


def edges_of_layer(cache: Any, layer: int, stage: str = "post") -> Edges:
    """All edges of one stage of composition in one layer of a planted model.

    Args:
        cache: of one prompt, with the layer's hooks of this stage.
        layer: its number.
        stage: "post", or "pre", whose edges carry scores.
    """
    tap = {name: cache[f"blocks.{layer}.attn.{stage}.hook_{name}"][0] for name in ("in", *WEIGHTS)}
    a = tap["in"]
    same = torch.eye(len(a)).to(a)
    return torch.stack(
        [
            einsum("fts,fh->fhts", a, same),
            einsum("fts,trf,trh->fhts", a, tap["w_q1"], tap["w_q2"]),
            einsum("fts,srf,srh->fhts", a, tap["w_k1"], tap["w_k2"]),
            einsum("fts,fh,tf->fhts", a, same, tap["w_qg"]),
            einsum("fts,fh,sf->fhts", a, same, tap["w_kg"]),
        ]
    )


def all_edges(bridge: Bridge, ids: Tensor, stage: str = "post") -> list[Edges]:
    """The edges of every layer on one prompt [1, pos]."""
    layers = range(bridge.cfg.n_layers)
    names = [f"blocks.{layer}.attn.{stage}.hook_{name}" for layer in layers for name in ("in", *WEIGHTS)]
    with torch.no_grad():
        cache = bridge.run_with_cache(ids, names_filter=names)[1]
    return [edges_of_layer(cache, layer, stage) for layer in layers]


@torch.no_grad()
def effects(
    bridge: Bridge,
    ids: Tensor,
    metric: Callable[[Tensor], Tensor],
    layer: int,
    parts: Float[Tensor, "part head_to query key"],
    batch_size: int = 256,
    stage: str = "post",
) -> Float[Tensor, " part"]:
    """f(model) - f(model without the part), for parts of one layer's composed attention.

    Args:
        bridge: over a planted model.
        ids: the prompt [1, pos].
        metric: f, from logits [batch, pos, vocab] to [batch].
        layer: whose attention.
        parts: what to remove, each in a run of its own.
        batch_size: runs at a time.
        stage: of composition: what is removed is a part of the composed attention, or ("pre") of the composed scores.
    """
    name = f"blocks.{layer}.attn." + ("hook_pattern" if stage == "post" else "pre.hook_out")
    found = torch.zeros(len(parts), dtype=parts.dtype)
    # Most edges of a model without noise are exactly zero, and removing nothing changes nothing.
    present = parts.flatten(1).abs().amax(1).nonzero().flatten()
    whole = metric(bridge(ids))
    for some in present.split(batch_size):
        hooks = [(name, lambda pattern, hook, part=parts[some]: pattern - part)]
        without = metric(bridge.run_with_hooks(ids.expand(len(some), -1), fwd_hooks=hooks))
        found[some] = whole - without
    return found
