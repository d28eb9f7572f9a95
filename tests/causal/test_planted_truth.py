"""The labels of planted circuits against what happens when an edge is removed: measured, not declared."""

from __future__ import annotations

import pytest
import torch

from dcinterp.bridge import wrap
from dcinterp.planted import circuits, plant, tokenizer
from dcinterp.planted.effects import all_edges, effects
from dcinterp.planted.words import TOKEN_ID

ONE_LOGIT, ONE_EDGE = 1.0, 10.0


def measured(planted, example):
    """The bridge, and the effect of removing each edge, [layer, branch, head_from, head_to]."""
    bridge = wrap(planted.model, tokenizer())
    ids = torch.tensor([[TOKEN_ID[word] for word in example.prompt.split()]])
    plus, minus = TOKEN_ID[example.target], TOKEN_ID[example.foil]
    edges = all_edges(bridge, ids)
    found = []
    for layer, parts in enumerate(edges):
        kinds, heads = parts.shape[0], parts.shape[1]
        # One edge reaches one head: its part of [head_to, query, key] is zero for the others.
        single = torch.zeros(kinds, heads, heads, heads, *parts.shape[3:])
        to = torch.arange(heads)
        single[:, :, to, to] = parts
        flat = effects(bridge, ids, lambda z: z[:, -1, plus] - z[:, -1, minus], layer, single.flatten(0, 2))
        found.append(flat.reshape(kinds, heads, heads))
    return torch.stack(found)


@pytest.mark.parametrize("name", circuits())
@pytest.mark.parametrize("knobs", [{}, {"rank": 3}, {"circuits": 4}], ids=str)
def test_an_edge_has_an_effect_exactly_where_the_truth_has_a_sign(name, knobs):
    planted = plant(name, seed=1, **knobs)
    example = planted.examples(1, seed=2)[0]
    truth, effect = planted.truth(example).edges, measured(planted, example)
    assert torch.equal(effect.sign()[truth != 0], truth[truth != 0].float())
    assert float(effect[truth != 0].abs().min()) > ONE_LOGIT
    assert float(effect[truth == 0].abs().max()) < 1e-3


@pytest.mark.parametrize("name", circuits())
def test_copies_share_the_work_in_layer_1_and_back_each_other_up_in_layer_0(name):
    planted = plant(name, seed=3, redundancy=2)
    example = planted.examples(1)[0]
    truth, effect = planted.truth(example).edges, measured(planted, example)
    assert torch.equal(effect[1].sign()[truth[1] != 0], truth[1][truth[1] != 0].float())
    assert float(effect[1].abs().max()) <= (ONE_EDGE / 2 if name == "gate-by-qg" else ONE_EDGE / 4) + 1e-3
    # Half of a name, or of a question where it only wakes the finders, is enough: when one copy is gone, nobody misses
    # it. (With many-to-one the asked name and the name before the thing are both halved: too little.)
    spare = planted.question[0] if name == "many-to-one" else planted.previous[0]
    assert abs(float(effect[0, 0, spare, spare])) < 0.01
