"""Words that a tokenizer does not know, and would silently read as one and the same."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def has_unknown(tokenizer: Any, ids: Tensor) -> bool:
    """Whether a text may have been read with unknown words in it; `unknown_words` knows.

    The token may also be one that opens every prompt: GPT-2's unknown token is its beginning and end of text, too.
    """
    unknown = getattr(tokenizer, "unk_token_id", None)
    return unknown is not None and bool((ids == unknown).any())


def ends_texts(tokenizer: Any) -> bool:
    """Whether the unknown token is that of the beginning or the end of a text, too."""
    return tokenizer.unk_token_id in (tokenizer.bos_token_id, tokenizer.eos_token_id)


def unknown_words(tokenizer: Any, text: str) -> list[str]:
    """Each of them once, in the order of the text. It reads the text again: ask `has_unknown` first."""
    unknown = tokenizer.unk_token_id
    if unknown not in tokenizer(text, add_special_tokens=False)["input_ids"]:
        return []
    if not tokenizer.is_fast:
        return [text]
    encoding = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    pairs = zip(encoding["input_ids"], encoding["offset_mapping"], strict=True)
    words = (text[start:end] for token, (start, end) in pairs if token == unknown)
    # Where the token has another meaning too, one that was typed is meant.
    ends = ends_texts(tokenizer)
    return list(dict.fromkeys(word for word in words if not (ends and word == tokenizer.unk_token)))


def unknown_clause(words: list[str]) -> str:
    """ "the words 'sat', 'Tom'", shortened when there are many."""
    named = ", ".join(map(repr, words[:5])) + (f" and {len(words) - 5} more" if len(words) > 5 else "")
    return f"the word{'s' if len(words) > 1 else ''} {named}"
