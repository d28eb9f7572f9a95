"""Tokenizers: a word a token for the synthetic tasks, so that a head's picture reads as text; bytes for any text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import synthetic_tasks
from dcinterp.support.errors import UserError

SPECIAL_TOKENS = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>"}


def task_tokenizer(context: int) -> PreTrainedTokenizerFast:
    """The tokenizer of every model that we train on the tasks.

    Its vocabulary is the special tokens followed by `synthetic_tasks.vocabulary()`, and it cuts text exactly as
    `synthetic_tasks.words` does. Text that is not in the grammar becomes `<unk>`.

    Args:
        context: the longest text, in tokens, that the model takes.
    """
    vocabulary = [*SPECIAL_TOKENS.values(), *synthetic_tasks.vocabulary()]
    core = Tokenizer(
        models.WordLevel(
            {word: number for number, word in enumerate(vocabulary)}, unk_token=SPECIAL_TOKENS["unk_token"]
        )
    )
    # Whatever the pattern does not match is white space between words: drop it.
    core.pre_tokenizer = pre_tokenizers.Split(Regex(synthetic_tasks.WORD_PATTERN), behavior="removed", invert=True)
    # Joins with spaces and then closes them up before punctuation and the possessive.
    core.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=context, **SPECIAL_TOKENS)


def save_tokenizer(folder: str | Path, context: int) -> PreTrainedTokenizerFast:
    """Write the tokenizer into `folder` and return it as read back from there.

    TransformerLens loads a tokenizer again from where it came, so one that lives only in memory would not do.
    """
    write_tokenizer(task_tokenizer(context), folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def write_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: str | Path) -> None:
    """Save a tokenizer; where the disk does not take it, with the error that Python has for that.

    Raises:
        OSError: the disk is full, or the folder cannot be written; `tokenizers` has a bare Exception for both.
    """
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        if type(error) is Exception and (number := re.search(r"\(os error (\d+)\)", str(error))):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(folder)) from error
        raise


def byte_tokenizer(context: int) -> PreTrainedTokenizerFast:
    """One token a byte of the UTF-8 text, behind the special tokens: any text, no training, 260 ids.

    Args:
        context: the longest text, in tokens, that the model takes.
    """
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS.values(), *_byte_letters()])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=context, **SPECIAL_TOKENS)


def bpe_tokenizer(texts: Iterable[str], vocabulary: int, context: int) -> PreTrainedTokenizerFast:
    """Byte pairs learnt from `texts`: the special tokens, the 256 bytes, and the commonest merges.

    Args:
        texts: what the merges are learnt from.
        vocabulary: ids in all; at least 260.
        context: the longest text, in tokens, that the model takes.

    Raises:
        UserError: the vocabulary has no room for the bytes.
    """
    smallest = len(SPECIAL_TOKENS) + 256
    if vocabulary < smallest:
        raise UserError(
            f"data.text.vocabulary is {vocabulary}; it must hold at least the {smallest} bytes and specials."
        )
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=_byte_letters(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=context, **SPECIAL_TOKENS)


def _byte_letters() -> list[str]:
    """The letters that stand for the 256 bytes, in the order of the bytes (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]
