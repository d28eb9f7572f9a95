"""The documents of a puzzle as batches, with a tokenizer of the puzzle's own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from dcinterp.train.config.recipe import PuzzleSection
from dcinterp.train.data.batches import NOT_SCORED, Draw
from dcinterp.train.data.puzzles import Puzzle, open_puzzle
from dcinterp.train.data.tokenizer import SPECIAL_TOKENS, write_tokenizer


class PuzzleSource:
    """Documents of one puzzle, each behind a beginning token, made anew for every step."""

    def __init__(self, section: PuzzleSection, folder: Path, *, makes: bool = True) -> None:
        """Open a puzzle.

        Args:
            section: which one, and its options.
            folder: that receives the tokenizer.
            makes: whether this process writes it; others read it.
        """
        self.puzzle: Puzzle = open_puzzle(section)
        if makes:
            write_tokenizer(word_tokenizer(self.puzzle.words(), self._length()), folder)
        self.tokenizer: PreTrainedTokenizerFast | None = PreTrainedTokenizerFast.from_pretrained(folder)

    def model_fields(self) -> dict[str, Any]:
        tokenizer = self.tokenizer
        assert tokenizer is not None
        return {
            "vocab_size": len(tokenizer),
            "max_position_embeddings": self._length(),
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        }

    def batch(self, draw: Draw, part: int = 0, parts: int = 1) -> dict[str, Tensor]:
        made = self._documents(
            np.random.default_rng([draw.seed, draw.step]), draw.phase.batch_size, self.puzzle.PARTS[0]
        )
        ids, answers = (each[part::parts] for each in made)
        scored = answers if draw.phase.score == "answer" else torch.ones_like(answers)
        return {"input_ids": ids, "labels": ids.where(scored, NOT_SCORED)}

    def held_out(self, part: str, count: int) -> dict[str, Tensor]:
        """Documents of a part, the same for every run; no document of training comes from this seed."""
        number = self.puzzle.PARTS.index(part)
        ids, answers = self._documents(np.random.default_rng([2**63, number]), count, part)
        return {"input_ids": ids, "labels": ids.where(answers, NOT_SCORED)}

    def digest(self) -> str:
        return ""

    def _documents(self, random: np.random.Generator, count: int, part: str) -> tuple[Tensor, Tensor]:
        assert self.tokenizer is not None
        made = self.puzzle.documents(random, count, part)
        beginning = torch.full((count, 1), self.tokenizer.bos_token_id)
        ids = torch.cat([beginning, torch.from_numpy(made.words) + len(SPECIAL_TOKENS)], dim=1)
        return ids, torch.cat([torch.zeros_like(beginning, dtype=torch.bool), torch.from_numpy(made.answers)], dim=1)

    def _length(self) -> int:
        made = self.puzzle.documents(np.random.default_rng(0), 1, self.puzzle.PARTS[0])
        return 1 + made.words.shape[1]


def word_tokenizer(words: list[str], context: int) -> PreTrainedTokenizerFast:
    """A word a token, between spaces; the special tokens come first.

    Args:
        words: all words, in the order of their ids.
        context: the longest text, in tokens, that the model takes.
    """
    vocabulary = {word: number for number, word in enumerate([*SPECIAL_TOKENS.values(), *words])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=context, **SPECIAL_TOKENS)
