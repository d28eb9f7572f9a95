"""The labels of planted circuits against what happens when an edge is removed: measured, not declared."""

from __future__ import annotations

import pytest
import torch

from dcinterp.bridge import wrap
from dcinterp.planted import Traits, circuits, plant, together, tokenizer
from dcinterp.planted.effects import all_edges, effects
from dcinterp.planted.words import TOKEN_ID

ONE_LOGIT, ONE_EDGE = 1.0, 10.0


def measured(planted, example, stage="post"):
    """The effect of removing each edge of one stage, [layer, branch, head_from, head_to]."""
    bridge = wrap(planted.model, tokenizer())
    ids = torch.tensor([[TOKEN_ID[word] for word in example.prompt.split()]])
    plus, minus = TOKEN_ID[example.target], TOKEN_ID[example.foil]
    found = []
    for layer, parts in enumerate(all_edges(bridge, ids, stage)):
        kinds, heads = parts.shape[0], parts.shape[1]
        # One edge reaches one head: its part of [head_to, query, key] is zero for the others.
        single = torch.zeros(kinds, heads, heads, heads, *parts.shape[3:])
        to = torch.arange(heads)
        single[:, :, to, to] = parts
        single = single.flatten(0, 2)
        flat = effects(bridge, ids, lambda z: z[:, -1, plus] - z[:, -1, minus], layer, single, stage=stage)
        found.append(flat.reshape(kinds, heads, heads))
    return torch.stack(found)


# What other knobs do is the same for all kinds.
CASES = [(name, stage, {}) for name, kind in circuits().items() for stage in Traits.of(kind).STAGES]
CASES += [(name, "post", knobs) for name in together() for knobs in ({"rank": 3}, {"circuits": 4})]


@pytest.mark.parametrize(("name", "stage", "knobs"), CASES, ids=str)
def test_an_edge_has_an_effect_exactly_where_the_truth_has_a_sign(name, stage, knobs):
    planted = plant(name, seed=1, **knobs)
    example = planted.examples(1, seed=2)[0]
    truth, effect = planted.truth(example).stages[stage], measured(planted, example, stage)
    spare = backups(planted, truth)
    sure = (truth != 0) & ~spare
    assert torch.equal(effect.sign()[sure], truth[sure].float())
    assert float(effect[sure].abs().min()) > ONE_LOGIT
    assert float(effect[~sure].abs().max()) < 1e-3


def backups(planted, truth):
    """The true edges of which each is enough without the other: between heads of layer 1 of the kind with backups."""
    found = torch.zeros_like(truth, dtype=torch.bool)
    if Traits.of(circuits()[planted.circuit]).BACKUPS:
        found[1] = truth[1] != 0
    return found


def test_either_backup_is_enough_and_without_both_the_answer_is_gone():
    planted = plant("backup", seed=1)
    example = planted.examples(1, seed=2)[0]
    both = [tuple(place) for place in backups(planted, planted.truth(example).edges).nonzero().tolist()]
    assert len(both) == 2
    bridge = wrap(planted.model, tokenizer())
    ids = torch.tensor([[TOKEN_ID[word] for word in example.prompt.split()]])
    plus, minus = TOKEN_ID[example.target], TOKEN_ID[example.foil]
    edges = all_edges(bridge, ids)[1]
    parts = torch.zeros(3, edges.shape[1], *edges.shape[3:])
    for row, chosen in enumerate((both[:1], both[1:], both)):
        for _, branch, head_from, head_to in chosen:
            parts[row, head_to] += edges[branch, head_from, head_to]
    first, second, together_gone = effects(bridge, ids, lambda z: z[:, -1, plus] - z[:, -1, minus], 1, parts).tolist()
    assert abs(first) < 1e-3
    assert abs(second) < 1e-3
    assert together_gone > ONE_LOGIT


@pytest.mark.parametrize("name", together())
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
