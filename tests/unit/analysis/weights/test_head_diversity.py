"""Head diversity of real models against scikit-learn's PCA of the matrices written out, and against random weights."""

from __future__ import annotations

import pytest
import torch
from sklearn.decomposition import PCA

import dcinterp
from dcinterp import UserError
from dcinterp.analysis.weights.compare_head_diversity import side_by_side


def oracle(left, right, reading):
    products = [(a @ b.T).double() for a, b in zip(left, right, strict=True)]
    joined = {"concatenated": lambda: torch.cat(products, dim=1), "stacked": lambda: torch.cat(products)}
    whole = joined[reading]() if reading in joined else sum(products)
    return torch.from_numpy(PCA().fit(whole.numpy()).explained_variance_ratio_).cumsum(0).float()


@pytest.mark.parametrize("reading", ["concatenated", "stacked", "product"])
def test_curves_are_those_of_principal_component_analysis(bridge, reading):
    diversity = dcinterp.head_diversity(bridge, reading=reading)
    for layer in range(2):
        attention = bridge.original_model.model.layers[layer].self_attn
        q, k, v = (getattr(attention, f"{x}_proj").weight.detach().view(8, 16, 128).mT for x in "qkv")
        o = attention.o_proj.weight.detach().view(128, 8, 16).permute(1, 0, 2)
        assert torch.allclose(diversity.qk[layer], oracle(q, k, reading), atol=1e-5)
        assert torch.allclose(diversity.ov[layer], oracle(o, v, reading), atol=1e-5)
        if reading == "product":
            assert diversity.ov_other is None
        else:
            assert torch.allclose(diversity.ov_other[layer], oracle(o, v, diversity.other_reading), atol=1e-5)
            assert not torch.allclose(diversity.ov_other[layer], diversity.ov[layer], atol=1e-5)


def test_heads_that_share_keys_and_values(foreign):
    bridge = foreign("llama")
    diversity = dcinterp.head_diversity(bridge)
    attention = bridge.blocks[1].attn
    q, k = attention.W_Q.detach(), attention.W_K.detach()
    assert torch.allclose(diversity.qk[1], oracle(q, k[[0, 0, 1, 1]], "concatenated"), atol=1e-5)


def test_random_weights_lie_on_the_reference_and_equal_heads_far_above(make_bridge):
    bridge = make_bridge("tiny-transformer++")
    diversity = dcinterp.head_diversity(bridge)
    assert (diversity.qk - diversity.random).abs().max() < 0.01
    assert float(diversity.qk_effective_rank.mean()) == pytest.approx(diversity.random_effective_rank, rel=0.01)
    with torch.no_grad():
        for layer in bridge.original_model.model.layers:
            layer.self_attn.q_proj.weight.copy_(layer.self_attn.q_proj.weight[:16].repeat(8, 1))
    same = dcinterp.head_diversity(bridge)
    assert float(same.mean("qk")[15]) == pytest.approx(1, abs=1e-5)
    assert same.components_for("qk") <= 16 < same.components_for("ov")


def test_curves_rise_to_one(bridge):
    diversity = dcinterp.head_diversity(bridge)
    for curve in (*diversity.qk, *diversity.ov, diversity.random):
        assert (curve.diff() >= -1e-6).all()
        assert float(curve[-1]) == pytest.approx(1, abs=1e-5)
    ninety = diversity.components_for("ov", 0.9)
    assert diversity.mean("ov")[ninety - 1] >= 0.9 > diversity.mean("ov")[ninety - 2]


def test_two_models_of_different_widths_side_by_side(bridge, foreign):
    wide, narrow = dcinterp.head_diversity(bridge), dcinterp.head_diversity(foreign("gpt2"))
    both = side_by_side({"wide": wide, "narrow": narrow})
    assert both.qk.shape == (2, 128)
    assert torch.equal(both.qk[1, :32], narrow.mean("qk"))
    assert (both.qk[1, 32:] == 1).all()
    assert both.components.tolist() == [128, 32]
    assert torch.equal(both.ov_other[1, :32], narrow.mean("ov_other"))
    assert torch.equal(both.qk_other_effective_rank[0], wide.qk_other_effective_rank.mean())
    names = {trace.name for trace in dcinterp.figures.plot(both).data}
    assert {"wide", "wide, on top of each other"} <= names
    with pytest.raises(UserError, match="only with the same reading"):
        side_by_side({"a": wide, "b": dcinterp.head_diversity(bridge, reading="product")})


def test_compares_with_a_model_by_name(shipped):
    told = []
    both = dcinterp.compare_head_diversity(shipped, other="transformer++", progress=lambda *call: told.append(call[:2]))
    assert told == [(done, len(told)) for done in range(1, len(told) + 1)], "one bar over both models"
    assert both.models == ("dcformer++", "transformer++")
    twin = dcinterp.head_diversity(dcinterp.load("transformer++"))
    assert torch.equal(both.ov[1], twin.mean("ov"))


def test_refuses_with_a_sentence(bridge):
    with pytest.raises(UserError, match="concatenated"):
        dcinterp.head_diversity(bridge, reading="concat")
    with pytest.raises(UserError, match="at least one draw"):
        dcinterp.head_diversity(bridge, random_draws=0)
    with pytest.raises(UserError, match="no shipped model"):
        dcinterp.compare_head_diversity(bridge, other="transformer+")
