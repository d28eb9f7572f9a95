"""The prediction against the model's own logits, sorted."""

from __future__ import annotations

import pytest
import torch

import dcinterp


@pytest.mark.parametrize("at", [-1, 3])
def test_probabilities_and_rank_are_those_of_the_sorted_logits(bridge, prompt, at):
    with torch.no_grad():
        logits = bridge(prompt)[0, at]
    order = logits.argsort(descending=True)
    answer = int(order[6])
    found = dcinterp.predict(bridge, prompt, answer, at=at, k=4)
    assert found.top_ids.tolist() == order[:4].tolist()
    assert torch.allclose(found.probability, logits.softmax(-1)[order[:4]])
    assert torch.allclose(found.logit, logits[order[:4]])
    assert found.rank == 7
    assert found.answer_probability == pytest.approx(float(logits.softmax(-1)[answer]))
    assert dcinterp.predict(bridge, prompt, at=at).rank == 0, "no answer was asked about"


def test_every_unknown_word_of_a_prompt_is_named_once(shipped):
    with pytest.raises(dcinterp.UserError, match="does not know the words 'sat', 'Tom'; use"):
        dcinterp.predict(shipped, "The cat sat on Tom. Tom sat on")
    with pytest.raises(dcinterp.UserError, match="and 2 more"):
        dcinterp.predict(shipped, "one two three four five six seven")


def test_a_token_is_called_by_its_word_where_that_reads_as_the_token(shipped):
    from dcinterp.mechanism.prompt import token_id, token_word

    assert token_word(shipped, token_id(shipped, "food")) == "food"
    names = [token_word(shipped, token) for token in range(shipped.cfg.d_vocab)]
    assert all(token_id(shipped, name) == token for token, name in enumerate(names))
    assert names[shipped.tokenizer.unk_token_id] == shipped.tokenizer.unk_token_id


def test_a_word_that_is_another_token_after_a_space_is_not_read_in_silence(own_model):
    bridge = dcinterp.load(own_model("gpt2"))
    vocabulary = bridge.tokenizer.get_vocab()
    words = [word for word in vocabulary if word.isascii() and word.isalpha() and f"Ġ{word}" in vocabulary]
    found = [dcinterp.predict(bridge, "Ruth has a", word) for word in words]
    assert {each.spaced for each in found} == {f" {word}" for word in words}
    for word, each in zip(words, found, strict=True):
        spaced = dcinterp.predict(bridge, "Ruth has a", f" {word}")
        assert (spaced.spaced, spaced.warnings()) == ("", [])
        assert each.spaced_probability == pytest.approx(spaced.answer_probability)
        assert bool(each.warnings()) == (each.spaced_probability > each.answer_probability)
    assert 0 < sum(bool(each.warnings()) for each in found) < len(found)


def test_a_sentence_says_where_the_answer_stands(bridge, prompt):
    found = dcinterp.predict(bridge, prompt, "fruit")
    assert f'"fruit" has rank {found.rank} and a probability of' in found.sentence()
    assert dcinterp.predict(bridge, prompt).sentence() == ""
