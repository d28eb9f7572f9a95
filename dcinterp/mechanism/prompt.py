"""From what a person gives (text, ids, a word, a negative position) to what a model takes, with clear refusals."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.shapes import TokenIds
from dcinterp.support.errors import UserError
from dcinterp.support.text import shown
from dcinterp.support.vocabulary import has_unknown, unknown_clause, unknown_words

Prompt = str | Sequence[int] | Tensor
"""A text, or its token ids [pos] or [1, pos]."""

Token = str | int
"""A word that is one token, or a token id."""


def token_ids(bridge: Bridge, prompt: Prompt) -> TokenIds:
    """The prompt as ids [1, pos] on the bridge's device.

    Raises:
        UserError: the model reads images; the prompt is empty, has a word that the tokenizer does not know, is longer
            than the context, or has an id outside the vocabulary.
    """
    if getattr(bridge.cfg, "is_visual_model", False):
        raise UserError("This is about texts, and this model reads images; load a language model.")
    if isinstance(prompt, str):
        ids = _encode(bridge, prompt)
    else:
        given = _numbers(prompt)
        if given.is_floating_point() and given.numel():
            raise UserError(
                "The prompt has a token id that is not a whole number; give whole numbers, as in [5, 7, 9]."
            )
        ids = given.long()
        ids = ids[None] if ids.dim() == 1 else ids
    if ids.dim() != 2 or ids.shape[0] != 1:
        raise UserError(f"A prompt is one sequence of token ids, but this one has shape {tuple(ids.shape)}.")
    if ids.shape[1] == 0:
        raise UserError("The prompt is empty; type some text.")
    vocabulary = bridge.cfg.d_vocab
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise UserError(f"The prompt has a token id outside 0..{vocabulary - 1}, the vocabulary of this model.")
    if ids.shape[1] > bridge.cfg.n_ctx:
        raise UserError(
            f"The prompt is {ids.shape[1]} tokens long, but this model's context is {bridge.cfg.n_ctx}; shorten it."
        )
    ids = ids.to(next(bridge.original_model.parameters()).device)
    return ids.clone() if ids.is_inference() else ids


def _numbers(ids: Any) -> Tensor:
    try:
        if _has_bool(ids):  # which torch and Python take for 1 and 0
            raise TypeError
        found = torch.as_tensor(ids)
        if found.dtype == torch.bool:
            raise TypeError
        return found
    except (TypeError, ValueError, RuntimeError) as error:
        if "overflow" in str(error).lower():
            raise UserError("A prompt is a list of token ids; one of these numbers is too large for one.") from error
        raise UserError(f"A prompt is text or a list of token ids, as in [5, 7, 9]; this is {shown(ids)}.") from error


def _has_bool(ids: Any) -> bool:
    return isinstance(ids, bool) or (isinstance(ids, list | tuple) and any(map(_has_bool, ids)))


def token_id(bridge: Bridge, token: Token) -> int:
    """The id of a word that is a single token, tried as written and with a space before it.

    Raises:
        UserError: the word is unknown or takes several tokens, or the id is outside the vocabulary.
    """
    if not isinstance(token, str):
        try:
            if isinstance(token, bool) or "bool" in str(getattr(token, "dtype", "")):
                raise TypeError
            token = operator.index(token)  # numpy's and torch's integers too
        except TypeError as error:
            raise UserError(f"A token is a word or its id; this is {shown(token)}.") from error
        if not 0 <= token < bridge.cfg.d_vocab:
            raise UserError(f"Token id {token} is outside 0..{bridge.cfg.d_vocab - 1}, the vocabulary of this model.")
        return token
    for form in (token, f" {token}"):
        ids = _encode(bridge, form, special=False)[0]
        if len(ids) == 1:
            return int(ids[0])
    raise UserError(
        f"{token!r} is {len(ids)} tokens in this model's vocabulary; give a word that is one token, or its id."
    )


def spaced_token_id(bridge: Bridge, word: Token) -> int | None:
    """The first token of an answer with a space before it, where that is another one than it begins with; else None.

    Byte-level vocabularies have two tokens for most words: "Paris" after a bracket, and " Paris" after a word.
    """
    if not isinstance(word, str) or word != word.strip():
        return None
    try:
        spaced, own = (_encode(bridge, text, special=False)[0].tolist() for text in (f" {word}", word))
    except UserError:  # a word that this model lacks
        return None
    with suppress(UserError):
        own = [token_id(bridge, word)]  # which may be that after a space
    first = spaced[0] if spaced and decoded(bridge, spaced[:1]).strip() else None
    return first if first is not None and first != own[0] else None


def token_word(bridge: Bridge, token: int) -> Token:
    """The word that `token_id` reads as this token, which is what a person writes; the id itself if there is none."""
    if bridge.tokenizer is None:
        return token
    word = bridge.tokenizer.decode([token]).strip()
    try:
        return word if word and token_id(bridge, word) == token else token
    except UserError:
        return token


def token_text(bridge: Bridge, token: int) -> str:
    """A token for a table: its word (`token_word`), with the space that belongs to it, or its number if it has none."""
    word = token_word(bridge, token)
    if isinstance(word, str) or bridge.tokenizer is None:
        return str(word)
    text: str = bridge.tokenizer.decode([token])
    return str(token) if not text.strip() or "\ufffd" in text else text


def space_warnings(answer: str, probability: float, spaced: str, of_spaced: float) -> list[str]:
    """That an answer with a space before it is another token, and the likelier one.

    Args:
        answer: as it was read, and its probability.
        spaced: the same word after a space, and its probability; empty where that is the same token.
    """
    if not spaced or of_spaced <= probability:
        return []
    return [
        f"{answer!r} and {spaced!r} are different tokens of this model, and the one with a space is more likely here "
        f"({of_spaced:.2g}, against {probability:.2g}); write {spaced!r} if you mean it."
    ]


def first_token(bridge: Bridge, answer: Token) -> int:
    """The id of the first token of an answer that may take several, which is where the model has to choose.

    Raises:
        UserError: the answer is empty or has a word that the tokenizer does not know, or the id does not exist.
    """
    return tokens_in_text(bridge, answer)[0] if isinstance(answer, str) else token_id(bridge, answer)


def tokens_in_text(bridge: Bridge, answer: str) -> tuple[int, ...]:
    """All tokens of an answer as it stands in a text, after a space.

    Raises:
        UserError: the answer is empty or has a word that the tokenizer does not know.
    """
    ids = _encode(bridge, f" {answer.strip()}", special=False)[0].tolist()
    if not answer.strip() or len(ids) == 0:
        raise UserError("The answer is empty; give at least one word.")
    if len(ids) > 1 and not decoded(bridge, ids[:1]).strip():
        # A space of its own, which the text has too, or one more that the tokenizer puts before every text.
        with suppress(UserError):  # a model that lacks the word before it
            before, whole = (_encode(bridge, text, special=False)[0].tolist() for text in ("a", f"a {answer.strip()}"))
            ids = whole[len(before) :] if whole[: len(before)] == before and len(whole) > len(before) else ids
    return tuple(ids)


def tokens_as_written(bridge: Bridge, text: str) -> tuple[int, ...]:
    """All tokens of a text with the spaces that it has.

    Raises:
        UserError: it is empty or has a word that the tokenizer does not know.
    """
    if not text.strip():
        raise UserError("The answer is empty; give at least one word.")
    return tuple(_encode(bridge, text, special=False)[0].tolist())


def word_tokens(bridge: Bridge, word: Token) -> tuple[int, ...]:
    """The tokens of a word as it stands in running text: after a space, unless it takes fewer tokens without one.

    Raises:
        UserError: the word is empty or unknown, or the id is outside the vocabulary.
    """
    if not isinstance(word, str):
        return (token_id(bridge, word),)
    if not word.strip():
        raise UserError("A word is empty; give at least one letter.")
    forms: list[list[int]] = [
        _encode(bridge, form, special=False)[0].tolist() for form in (f" {word.strip()}", word.strip())
    ]
    shorter = forms[0] if len(forms[0]) <= len(forms[1]) else forms[1]
    return tuple(shorter)


def decoded(bridge: Bridge, tokens: list[int]) -> str:
    """Tokens as text; as numbers where the model has no tokenizer."""
    return bridge.tokenizer.decode(tokens) if bridge.tokenizer is not None else " ".join(map(str, tokens))


def position(index: int, length: int, name: str) -> int:
    """A position in 0..length-1 from one that may count from the end.

    Raises:
        UserError: it lies outside the prompt.
    """
    if not -length <= index < length:
        raise UserError(
            f"{name} {index} is outside the prompt, whose positions are 0..{length - 1} (or -{length}..-1)."
        )
    return index % length


def pair_of(query: int, key: int, length: int) -> tuple[int, int]:
    """The positions of a token and of one that it can attend to, in 0..length-1.

    Raises:
        UserError: one lies outside the prompt, or the key comes after the query.
    """
    query, key = position(query, length, "Query"), position(key, length, "Key")
    if key > query:
        raise UserError(f"Key {key} comes after query {query}, but a token sees only itself and earlier ones.")
    return query, key


def require_in_window(bridge: Bridge, layer: int, query: int, key: int) -> None:
    """Refuse a pair of tokens that a local layer does not see.

    Raises:
        UserError: the key lies outside the layer's window.
    """
    if hidden := outside_window(layer, bridge.original_model.config.window(layer), query, key):
        raise UserError(f"{hidden}; choose a later key.")


def outside_window(layer: int, window: int | None, query: int, key: int) -> str:
    """The beginning of a sentence on a pair of tokens that a local layer does not see; "" for one that it sees."""
    if window is None or query - key < window:
        return ""
    return f"Key {key} is outside the local window of layer {layer}, of {window} tokens up to the query {query}"


def layer_number(bridge: Bridge, layer: int) -> int:
    """A layer in 0..n-1 from one that may count from the end; UserError when there is no such layer."""
    n = bridge.cfg.n_layers
    if not -n <= layer < n:
        raise UserError(f"There is no layer {layer}; this model has layers 0..{n - 1}.")
    return layer % n


def head_number(bridge: Bridge, head: int) -> int:
    """A head in 0..n-1 from one that may count from the end; UserError when there is no such head."""
    n = bridge.cfg.n_heads
    if not -n <= head < n:
        raise UserError(f"There is no head {head}; this model has heads 0..{n - 1}.")
    return head % n


def require_stage(bridge: Bridge, stage: str) -> str:
    """`stage`, if the model composes its heads there.

    Raises:
        UserError: the model has no such composition (a plain transformer, say).
    """
    stages = stages_of(bridge)
    if stage not in ("pre", "post"):
        raise UserError(f"There is no stage {stage!r}; choose 'pre' (scores) or 'post' (weights).")
    if stage not in stages:
        has = f"only {stages[0]!r}" if stages else "none: its heads are not composed"
        way = f"Choose stage={stages[0]!r}." if stages else "Load a DCFormer."
        raise UserError(f"This needs the compose taps of stage {stage!r}, but this model has {has}. {way}")
    return stage


def str_tokens(bridge: Bridge, ids: TokenIds) -> tuple[str, ...]:
    """The tokens of a prompt as text, for labels."""
    tokenizer = bridge.tokenizer
    if tokenizer is None:
        return tuple(str(int(i)) for i in ids[0])
    return tuple(tokenizer.decode([int(i)]) for i in ids[0])


def _encode(bridge: Bridge, text: str, special: bool | None = None) -> TokenIds:
    """The ids of a text; with the tokens that open a prompt where the model expects them, unless `special` says."""
    special = bool(bridge.cfg.default_prepend_bos) if special is None else special
    if bridge.tokenizer is None:
        raise UserError("This model came without a tokenizer; give token ids instead of text.")
    ids = bridge.tokenizer(text, return_tensors="pt", add_special_tokens=special)["input_ids"].long()
    if has_unknown(bridge.tokenizer, ids) and (words := unknown_words(bridge.tokenizer, text)):
        raise UserError(f"This model does not know {unknown_clause(words)}; use words of its tasks.")
    return ids
