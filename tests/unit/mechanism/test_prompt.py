"""Texts of models whose tokenizers were made elsewhere."""

from __future__ import annotations

import pytest

from dcinterp.mechanism.prompt import token_ids
from dcinterp.support.errors import UserError
from dcinterp.support.vocabulary import unknown_words


def test_an_unknown_token_that_opens_every_prompt_refuses_no_text(foreign):
    """GPT-2's unknown token is also its beginning of text, and its bytes spell everything."""
    bridge = foreign("gpt2")
    assert bridge.tokenizer.unk_token == bridge.tokenizer.bos_token
    ids = token_ids(bridge, "Sharon has zeppelins.")
    assert int(ids[0, 0]) == bridge.tokenizer.bos_token_id
    assert bridge.tokenizer.decode(ids[0, 1:]) == "Sharon has zeppelins."


def test_an_unknown_token_that_somebody_typed_is_known(foreign):
    tokenizer = foreign("gpt2").tokenizer
    assert unknown_words(tokenizer, f"one{tokenizer.unk_token}two") == []


def test_a_word_that_only_the_unknown_token_could_stand_for_is_refused(bridge):
    with pytest.raises(UserError, match="does not know the word 'zeppelins'"):
        token_ids(bridge, "There are zeppelins")
