"""What analyses say in words where tokens are line breaks, values are equal, or there is nothing to say."""

from dataclasses import replace

import pytest
import torch

import dcinterp
from dcinterp.analysis.weights.ov_top_tokens import ov_ranks
from dcinterp.bridge import wrap
from dcinterp.mechanism.readout import likeliest, rank_of
from dcinterp.model.build import build_model
from dcinterp.model.config import DCFormerConfig
from dcinterp.support.errors import UserError
from dcinterp.support.text import in_sentence_apart

SOURCE = "def add(a, b):"


@pytest.fixture(scope="module")
def of_code():
    return dcinterp.load("dcformer++-code")


def small(seed: int = 0, **changes):
    """A random model of forty tokens whose composition matters."""
    torch.manual_seed(seed)
    fields = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    model = build_model(
        DCFormerConfig(**(fields | {"max_position_embeddings": 32, "initializer_range": 0.3} | changes))
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".pre." in name or ".post." in name:
                parameter.normal_(std=0.15, generator=generator)
    return wrap(model)


def test_a_line_break_that_is_an_answer_is_seen(of_code):
    first, second = map(int, dcinterp.predict(of_code, SOURCE).top_ids[:2])
    study = dcinterp.case_study(of_code, SOURCE)
    said = [
        dcinterp.logit_lens(of_code, SOURCE, first).sentence(),
        dcinterp.direct_logit_attribution(of_code, SOURCE, first, second).sentence(),
        dcinterp.generation_steps(of_code, SOURCE, steps=1).sentence(),
        *(step.sentence for step in study.steps),
        study.summary,
    ]
    for sentence in said:
        assert '""' not in sentence
        assert "\n" not in sentence
    assert all("↵" in sentence for sentence in said[:3])
    assert 'minus that of "↵␣' in said[1]


def test_tokens_that_differ_in_their_spaces_are_told_apart():
    assert in_sentence_apart(" b", "b") == ("␣b", "b")
    assert in_sentence_apart(" b", "c", None) == ("b", "c", "")
    assert in_sentence_apart("\n ", "\n  ") == ("↵␣", "↵␣␣")
    assert in_sentence_apart(" b", " b") == ("b", "b")


def test_the_answer_is_what_the_model_writes(of_code):
    prompt = f"{SOURCE}\n    return a +"
    scores = dcinterp.attribute_heads(of_code, prompt, "banana split")
    assert not scores.right
    assert dcinterp.generation_steps(of_code, prompt, steps=3).text.startswith(scores.answer.strip())


def test_a_followed_head_has_the_effect_that_is_said_of_it():
    bridge = small(seed=14, num_hidden_layers=3, num_attention_heads=4)
    study = dcinterp.case_study(bridge, [(14 * 7 + at * 3) % 40 for at in range(6)])
    assert study.direct[study.layer, study.head] < study.direct.max()
    assert "which of the heads with a notable attribution score has the largest direct effect" in study.summary
    assert "has the largest direct effect on the answer" not in study.summary


def test_what_a_static_map_shares_is_named_as_left_out():
    changes = {"compose": "static", "compose_skip": False, "compose_options": {"bias": True}}
    study = dcinterp.case_study(
        small(num_hidden_layers=2, num_attention_heads=4, **changes), [1, 2, 3, 4, 5, 6], foil=6
    )
    assert "largest: head" not in study.summary
    assert "the map that is the same for all tokens is not counted here" in study.summary


def test_no_edge_that_scores_is_a_sentence(shipped):
    edges = dcinterp.attribute_edges(shipped, "The", "tea", "meat", stage="pre")
    with pytest.raises(UserError, match="nothing to show by source token"):
        dcinterp.figures.plot(edges, kind="sources")


def test_two_units_correlate_with_nothing():
    found = dcinterp.calibrate(small(), [([1, 2, 3, 4, 5], 4, 19)], "head", methods=["ig"])
    assert "With one or two units no correlation means anything." in found.warnings()
    assert not any("shuffled" in warning for warning in found.warnings())


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_equal_logits_are_ranked_as_argmax_has_them(k):
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.5], [2.0, 2.0, 2.0, 2.0, 2.0], [0.1, 0.2, 0.3, 0.4, 0.5]])
    found = likeliest(logits, k)
    assert found[:, 0].tolist() == logits.argmax(-1).tolist()
    assert found.tolist() == logits.sort(descending=True, stable=True).indices[:, :k].tolist()
    for place in range(k):
        assert rank_of(logits, found[:, place]).tolist() == [place + 1] * 3


def test_the_lens_and_the_answer_name_one_token():
    bridge = small(num_hidden_layers=2)
    with torch.no_grad():
        bridge.original_model.get_output_embeddings().weight.zero_()
    lens = dcinterp.logit_lens(bridge, [1, 2, 3], 7)
    assert "does not put" in lens.sentence()
    assert dcinterp.predict(bridge, [1, 2, 3], 7).rank == 8


def test_a_right_answer_that_is_given_is_right_to_the_counterfactual(shipped):
    prompt = "There are tea, meat, meat. Which is not meat? The"
    alone, given = (
        dcinterp.patch_heads(shipped, prompt, sites=["z"], change="position", **target).warnings()
        for target in ({}, {"target": "tea"})
    )
    assert given == alone


def test_causes_of_no_difference_are_not_unconfirmed():
    bridge = small(num_hidden_layers=2, num_attention_heads=4)
    found = dcinterp.composition_causes(bridge, [1, 2, 3, 4, 5], 1, 0, 1, -1, 2, branch="qp")
    zero = torch.zeros_like(found.value)
    same = replace(found, value=zero, at_mean=zero, gap=zero, causes=found.causes * 0, ablation=found.ablation * 0)
    assert all("nothing to explain" in sentence for sentence in same.sentences())
    assert same.warnings() == []


def test_a_head_that_writes_nothing_promotes_no_token():
    bridge = small()
    with torch.no_grad():
        bridge.blocks[0].attn.W_O[1].zero_()
    words = [3, 7]
    silent, other = (dcinterp.ov_top_tokens(bridge, 0, head, words, k=4) for head in (1, 0))
    (note,) = silent.warnings()
    assert note.startswith("For 2 of the 2 words this head promotes no token above another")
    assert silent.top_ids.tolist() == [[0, 1, 2, 3]] * 2
    assert silent.own_rank.tolist() == [4, 8], "and not 1, as if it copied"
    assert ov_ranks(bridge, words, words)[0, 1].tolist() == [4, 8]
    assert not other.warnings()


def test_products_of_zero_weights_use_no_direction():
    bridge = small()
    assert not dcinterp.head_diversity(bridge).warnings()
    with torch.no_grad():
        bridge.blocks[0].attn.W_O.zero_()
    found = dcinterp.head_diversity(bridge)
    assert float(found.ov_effective_rank) == 0 < float(found.qk_effective_rank)
    assert found.components_for("ov") == 1, "and not one more than there are"
    (said,) = found.warnings()
    assert said.startswith("The OV products of layer 0 do not vary")
