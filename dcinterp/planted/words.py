"""The vocabulary of the planted circuits: four people, nine things, and the questions about them.

    <bos> Ann cherry Bob frog Carl topaz kind Bob      ->  animal

Three facts (a name, then what that person has), a question word, and the name or names that it is about.
"""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>"}
NAMES = ("Ann", "Bob", "Carl", "Dora")
KINDS = ("fruit", "animal", "gem")
COLOURS = ("red", "green", "yellow")

KIND = {
    "cherry": "fruit",
    "lime": "fruit",
    "lemon": "fruit",
    "crab": "animal",
    "frog": "animal",
    "canary": "animal",
    "ruby": "gem",
    "emerald": "gem",
    "topaz": "gem",
}
COLOUR = dict(zip(KIND, COLOURS * 3, strict=True))
OBJECTS = tuple(KIND)
ANSWERS = (*OBJECTS, *KINDS, *COLOURS)

QUESTIONS = ("kind", "class", "colour", "copy", "type", "item", "both")
"""One or more per circuit; a circuit acts on its own questions only, so that several can live in one model."""

VOCABULARY = (*SPECIAL_TOKENS.values(), *NAMES, *OBJECTS, *KINDS, *COLOURS, *QUESTIONS)
TOKEN_ID = {word: number for number, word in enumerate(VOCABULARY)}

FACTS = 3
CONTEXT = 1 + 2 * FACTS + 3


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; words are separated by spaces."""
    core = Tokenizer(models.WordLevel(dict(TOKEN_ID), unk_token=SPECIAL_TOKENS["unk_token"]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=CONTEXT, **SPECIAL_TOKENS)
