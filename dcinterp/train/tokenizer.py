"""A word-level tokenizer for the synthetic tasks: one token a word, so that a head's picture reads as text."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import synthetic_tasks

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
    task_tokenizer(context).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)
