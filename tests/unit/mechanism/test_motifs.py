"""The motifs of a map, worked by hand."""

from __future__ import annotations

import pytest
import torch

from dcinterp import UserError
from dcinterp.mechanism.motifs import find_motifs


def test_a_map_worked_by_hand():
    # Rows share, columns borrow. The largest entry is 1, so that 0.5 and more is strong.
    w = torch.tensor(
        [
            #  0     1     2     3     4
            [0.0, 0.8, 0.0, 0.0, 0.1],  # 0 and 1 excite each other
            [0.6, 0.0, 0.0, 0.0, 0.2],
            [0.7, -0.9, -0.5, 1.0, 0.0],  # 2 shares with 0, 1 and 3, inhibits 3 mutually? no: signs differ
            [0.0, 0.0, -0.6, 0.0, 0.0],
            [0.5, 0.0, 0.0, 0.4, 0.0],  # 4 shares with 0
        ]
    )
    found = {(m.name, m.sources, m.targets) for m in find_motifs(w)}
    assert found == {
        ("mutual excitation", (0, 1), (1, 0)),
        ("one-to-many", (2,), (0, 1, 3)),
        ("many-to-one", (1, 2, 4), (0,)),
        ("self-gating", (2,), (2,)),
    }


def test_signs_tell_excitation_from_inhibition():
    w = torch.zeros(4, 4)
    w[0, 1] = w[1, 0] = -0.5
    w[2, 3], w[3, 2] = 0.5, 0.4
    excited, inhibited = find_motifs(w)
    assert (excited.name, excited.sources) == ("mutual excitation", (2, 3))
    assert excited.weights == pytest.approx((0.5, 0.4))
    assert excited.strength == pytest.approx(0.4)
    assert (inhibited.name, inhibited.sources) == ("mutual inhibition", (0, 1))
    w[3, 2] = -0.4
    assert [m.name for m in find_motifs(w)] == ["mutual inhibition"]


def test_the_thresholds_are_arguments():
    w = torch.zeros(4, 4)
    w[0, 1], w[0, 2], w[0, 3] = 1.0, 0.3, 0.3
    assert find_motifs(w) == ()
    (motif,) = find_motifs(w, share=0.3)
    assert motif.name == "one-to-many"
    assert motif.sentence == "one-to-many: head 0 shares its attention with heads 1 (+1.00), 2 (+0.30), 3 (+0.30)"
    assert len(find_motifs(w.T, share=0.3)) == 1
    assert find_motifs(w, share=0.3, many=4) == ()


def test_sentences_say_who_does_what():
    silence = find_motifs(torch.diag(torch.tensor([0.0, -0.4, 0.0])))[0]
    assert silence.sentence == "self-gating: head 1 weakens its own attention (-0.40)"
    w = torch.zeros(4, 4)
    w[:3, 3] = torch.tensor([0.5, 0.6, -0.5])
    assert (
        find_motifs(w)[0].sentence == "many-to-one: head 3 borrows attention from heads 0 (+0.50), 1 (+0.60), 2 (-0.50)"
    )
    pair = torch.tensor([[0.0, 0.5], [0.5, 0.0]])
    assert find_motifs(pair)[0].sentence == "mutual excitation: heads 0 and 1 (+0.50, +0.50)"


def test_the_order_of_heads_does_not_matter():
    w = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))

    def named(found, names):
        return {(m.name, frozenset(names[h] for h in m.sources), frozenset(names[h] for h in m.targets)) for m in found}

    assert named(find_motifs(w), list(range(6))) == named(find_motifs(w[order][:, order]), order.tolist())


def test_nothing_in_nothing_and_refusals():
    assert find_motifs(torch.zeros(3, 3)) == ()
    for arguments in ({"share": 0.0}, {"many": 1}):
        with pytest.raises(UserError, match="do not define motifs"):
            find_motifs(torch.eye(3), **arguments)
    with pytest.raises(UserError, match="square"):
        find_motifs(torch.zeros(2, 3))
