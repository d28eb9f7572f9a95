"""Generation step by step: the model's own tokens, its own output, and what the lens finds at that place."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import dcinterp
from dcinterp.support.errors import UserError

PROMPT = [3, 4, 5, 6, 7]


@torch.no_grad()
def test_the_tokens_are_those_of_generate_and_the_depths_those_of_the_lens(bridge):
    found = dcinterp.generation_steps(bridge, PROMPT, steps=4)
    ids = torch.tensor([PROMPT])
    model = bridge.original_model
    whole = model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)[0]
    assert found.top_ids[-1, :, 0].tolist() == whole[5:].tolist()
    assert len(found.written) == len(whole) - 5
    assert (found.rank[-1] == 1).all()
    for step in range(len(found.written)):
        lens = dcinterp.logit_lens(bridge, whole[: 5 + step].tolist())
        assert torch.equal(found.top_ids[:, step], lens.top_ids[:, -1])
        torch.testing.assert_close(found.probability[:, step], lens.probability[:, -1])
    assert found.right is None
    assert found.first_depth(0) in found.depths


@torch.no_grad()
def test_an_answer_of_several_tokens_has_the_product_of_their_probabilities(bridge, monkeypatch):
    from dcinterp.analysis.answers import generation_steps as module

    monkeypatch.setattr(module, "answer_tokens", lambda bridge, answer: [9, 8, 11])
    found = dcinterp.generation_steps(bridge, PROMPT, "three tokens", steps=3)
    chance = 1.0
    for n, token in enumerate((9, 8, 11)):
        logits = bridge(torch.tensor([[*PROMPT, *(9, 8, 11)[:n]]]))[0, -1]
        assert float(found.answer_probability[n]) == pytest.approx(float(logits.softmax(-1)[token]), rel=1e-4)
        chance *= float(logits.softmax(-1)[token])
    assert f"whose 3 tokens together have a probability of {chance:.1%}" in found.sentence()
    assert found.right == (found.written == found.expected)
    cut = dataclasses.replace(found, expected=(*found.written, "more"), stopped=False)
    assert f'That is cut off within the answer "{found.answer}"' in cut.sentence()
    assert f'That does not begin with the answer "{found.answer}"' in dataclasses.replace(cut, stopped=True).sentence()


def test_a_right_answer_is_recognised_and_the_end_of_the_text_stops(shipped, prompt):
    said = dcinterp.predict(shipped, prompt).top_tokens[0].strip()
    found = dcinterp.generation_steps(shipped, prompt, said, steps=2)
    assert found.right
    assert f'begins with the answer "{said}"' in found.sentence()
    end = shipped.tokenizer.eos_token_id
    assert found.stopped == (int(found.top_ids[-1, -1, 0]) == end)
    with pytest.raises(UserError, match="shorten"):
        dcinterp.generation_steps(shipped, prompt, steps=5000)


def test_a_prompt_that_fills_the_context_has_room_for_one_more_token(bridge):
    whole = [3 + place % 7 for place in range(bridge.cfg.n_ctx)]
    assert len(dcinterp.generation_steps(bridge, whole, steps=1).written) == 1
    with pytest.raises(UserError, match="so 1 more can be written or scored and not 2"):
        dcinterp.generation_steps(bridge, whole, steps=2)


def test_an_answer_of_other_tokens_that_look_alike_is_not_right(bridge):
    first = int(dcinterp.generation_steps(bridge, PROMPT, steps=1).top_ids[-1, 0, 0])
    other = (first + 1) % bridge.cfg.d_vocab
    assert dcinterp.generation_steps(bridge, PROMPT, first, steps=1).right is True
    found = dcinterp.generation_steps(bridge, PROMPT, other, steps=1)
    assert dataclasses.replace(found, expected=found.written).right is False
    assert dataclasses.replace(found, expected=found.written, begins=None).right is True, "of an earlier version"


@pytest.mark.parametrize("several", [False, True])
def test_it_stops_where_the_model_itself_stops(bridge, several):
    first = dcinterp.generation_steps(bridge, PROMPT, steps=1).top_ids[-1, 0, 0].item()
    held = bridge.original_model.generation_config
    before, held.eos_token_id = held.eos_token_id, [first + 1, first] if several else first
    try:
        found = dcinterp.generation_steps(bridge, PROMPT, steps=4)
        whole = bridge.original_model.generate(
            torch.tensor([PROMPT]), max_new_tokens=4, do_sample=False, pad_token_id=0
        )
    finally:
        held.eos_token_id = before
    assert len(found.written) == whole.shape[1] - len(PROMPT) == 1
    assert found.stopped
