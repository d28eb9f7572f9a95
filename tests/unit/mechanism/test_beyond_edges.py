"""What heads take from other pairs of tokens and from the layer before: against the term itself, and by removal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, einsum

import dcinterp
from dcinterp.mechanism.edge_rules import Linear, Resoftmaxed
from dcinterp.mechanism.edges import EdgeState, beyond_names
from dcinterp.model.compose.branches import ComposeWeights, beyond, branches

POS, HEADS = 5, 4
HIDDEN = torch.ones(POS, POS, dtype=torch.bool).triu(1)


def weights(seed: int, groups: int = 2) -> ComposeWeights:
    """A convolution within groups, and a layer before."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    conv = normal(HEADS, HEADS // groups, 2, 4)
    conv[:, :, 0, 2] = 0  # the pair itself
    made = ComposeWeights(skip=False, groups=groups, conv=conv, previous=normal(HEADS, HEADS))
    return made.within(~HIDDEN[None, None]).after(normal(1, HEADS, POS, POS))


def state(seed: int) -> EdgeState:
    draw = torch.Generator().manual_seed(seed + 10)
    a = torch.randn(HEADS, POS, POS, generator=draw, dtype=torch.float64)
    return EdgeState("pre", a, {}, torch.zeros(HEADS, HEADS, dtype=torch.float64), 1, None, beyond=weights(seed))


def test_the_parts_are_the_terms() -> None:
    a, w = torch.randn(1, HEADS, POS, POS, dtype=torch.float64), weights(0)
    parts = sum(einsum("bfts,fh->bhts", read, maps) for read, maps in beyond(a, w))
    terms = branches(a, w)
    visible = terms["o_kq"] + terms["o_prev"]
    torch.testing.assert_close(parts, visible, atol=1e-12, rtol=0)


@pytest.mark.parametrize("with_other", [False, True])
def test_every_part_is_taken_out(with_other: bool) -> None:
    """By hand, one at a time: before a softmax, and before a linear map."""
    here, other = state(0), state(1) if with_other else None
    g = torch.randn(HEADS, POS, POS, dtype=torch.float64)
    scores = torch.randn(HEADS, POS, POS, dtype=torch.float64).masked_fill(HIDDEN, torch.finfo(torch.float64).min)
    rules = Resoftmaxed(scores, g), Linear(g)
    found = [rule.beyond(here, other) for rule in rules]
    names = beyond_names(here)
    assert len(names) == found[0].shape[-1] == 2 * 4
    assert (names[0], names[3], names[-1]) == ("query 0, key +2", "query -1, key +2", "previous layer")
    for place, name in enumerate(names):
        for f in range(HEADS):
            for h in range(HEADS):
                moved = torch.zeros_like(scores)
                moved[h] = by_hand(here, name, f, h) - (by_hand(other, name, f, h) if other else 0)
                for rule, scored in zip(rules, found, strict=True):
                    assert float(scored[f, h, place]) == pytest.approx(float(rule.effect(moved[None])), abs=1e-9)


def by_hand(of: EdgeState, name: str, f: int, h: int) -> Tensor:
    """What head h takes from head f by the term `name`, entry by entry."""
    assert of.beyond is not None
    if name == "previous layer":
        return of.beyond.before[0, f] * of.beyond.previous[f, h]
    i, j = (int(part.split()[1]) for part in name.split(", "))  # where it reads: up to 0, and either way
    out = torch.zeros(POS, POS, dtype=torch.float64)
    if f // 2 == h // 2:
        share = of.beyond.conv[h, f % 2, -i, 2 - j]
        for t in range(POS):
            for s in range(t + 1):
                if 0 <= s + j <= t + i:
                    out[t, s] = share * of.attention[f, t + i, s + j]
    return out


@pytest.mark.parametrize("name", ["multi-token", "dense-collaboration"])
def test_scores_add_up_to_what_the_layer_does(name: str, make_bridge: Any, prompt: str) -> None:
    small = dict(hidden_size=32, intermediate_size=40, num_attention_heads=4)
    options = {"compose_options": {"queries": 2, "keys": 3}} if name == "multi-token" else {}
    bridge = make_bridge(f"tiny-{name}", **small, **options)
    ids = bridge.to_tokens("Ruth has a violin. Carol has a kind of")
    found = dcinterp.attribute_edges(bridge, ids[0].tolist(), "fruit", "animal", stage="pre", method="ig", check=0)
    assert found.beyond is not None
    assert found.beyond.abs().max() > 1e-4 * found.scores.abs().max()
    assert found.mismatch.max() < 1e-4 * found.heads.abs().max()
    whole = found.scores.sum((1, 2, 3)) + found.beyond.sum((1, 2, 3)) + found.gap
    torch.testing.assert_close(whole, found.metric - found.metric_at_baseline, atol=1e-4, rtol=1e-3)
    assert bool(found.beyond[0].any()) == (name == "multi-token"), "nobody is before the first layer"
    frame = found.to_dataframe("beyond")
    assert len(frame) == found.beyond.numel()
    assert set(frame["term_label"]) == set(found.terms)
