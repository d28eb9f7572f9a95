"""Tokenizers: that of a model's folder, or another that a person gives a model that has none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from dcinterp.checkpoints.gguf_file import read_gguf_tokenizer
from dcinterp.checkpoints.names import folder_of, gguf_file
from dcinterp.support.errors import UserError, reason
from dcinterp.support.json_files import require_plain_file
from dcinterp.support.pretrained import WITHOUT_CODE

TOKENIZER_CONFIG = "tokenizer_config.json"
FILES = ("tokenizer.json", TOKENIZER_CONFIG, "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""Any of these makes a folder one with a tokenizer."""


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has files of a tokenizer.

    Raises:
        UserError: one of them is not a plain file, which transformers would pass over.
    """
    found = [folder / name for name in FILES if (folder / name).exists() or (folder / name).is_symlink()]
    for path in found:
        require_plain_file(path)
    return bool(found)


PATTERNS = "tokenizer*.json special_tokens_map.json added_tokens.json vocab.* merges.txt *.model chat_template.jinja"
"""Whatever a tokenizer may consist of, Python code aside."""


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy all files of a tokenizer from one folder into another."""
    for pattern in PATTERNS.split():
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copy(file, target)


def read_tokenizer(given: str | Path) -> Any:
    """The tokenizer of a shipped model, a folder or a GGUF file on this machine.

    Raises:
        UserError: there is none, or its files are damaged.
    """
    from transformers import AutoTokenizer

    folder = folder_of(given)
    if not str(given).strip() or not folder.exists():
        raise UserError(f"There is no folder {str(given)!r} with a tokenizer; give one that has a tokenizer.json.")
    if (file := gguf_file(folder)) is not None and not has_tokenizer(folder):
        tokenizer = read_gguf_tokenizer(file)
        if tokenizer is None:
            raise UserError(f"{file} holds no tokenizer that transformers can read; give the folder of another.")
        return tokenizer
    if not has_tokenizer(folder):
        raise UserError(f"{folder} has no tokenizer; give a folder with a tokenizer.json.")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, **WITHOUT_CODE)
    except Exception as error:  # the tokenizers library raises bare exceptions
        raise UserError(f"The tokenizer in {folder} is damaged ({reason(error)}); copy its files again.") from error


def require_fit(tokenizer: Any, vocabulary: int, named: object) -> None:
    """Refuse a tokenizer with ids that the model does not have.

    Raises:
        UserError: its largest id is outside the model's vocabulary.
    """
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= vocabulary:
        raise UserError(
            f"The tokenizer {named} has ids up to {largest}, but the model's vocabulary ends at {vocabulary - 1}; give "
            "the tokenizer that the model was trained with."
        )
