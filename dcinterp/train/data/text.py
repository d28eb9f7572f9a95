"""Any text as training rows: read, split by a hash of what it says, tokenised, packed, and kept on the disk.

A text is cut at line ends into pieces of about `PIECE` characters. A piece is held out when the hash of its characters
says so: two copies that are cut alike are on the same side. Cuts are counted from the start of a text, so that a copy
behind other words is cut elsewhere, and its pieces may be on both sides. Or whole files are, by the hash of all
their characters, for a model that must not have seen the rest of what it is asked about. The pieces of each side, with
an end-of-text token wherever text is missing between two of them, are cut into rows of `context` tokens.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sysconfig
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from dcinterp.support.errors import UserError
from dcinterp.support.file_names import is_run
from dcinterp.support.paths import matching, path_of
from dcinterp.train.config.recipe import TextSection
from dcinterp.train.data.batches import Draw, shuffle_index
from dcinterp.train.data.cache import file_version, find_or_make, fingerprint_files, require_whole
from dcinterp.train.data.installed import python_sources
from dcinterp.train.data.tokenizer import bpe_tokenizer, byte_tokenizer, write_tokenizer

PIECE = 2048
SIDES = ("train", "validation")
FORMAT = 1
"""Raise it when the same text would give other rows."""

CHARACTERS = (4, 8, 16, 32)
"""Of held-out text for each token of a row: the first by which a row is full."""

log = logging.getLogger(__name__)

Documents = Callable[[], Iterable[str]]


class TextSource:
    """Rows of a packed text. Each row is read once before any is read again, in an order that the seed gives."""

    def __init__(
        self, section: TextSection, tokenizer: PreTrainedTokenizerFast | None = None, output: Path | None = None
    ) -> None:
        """Prepare a text.

        Args:
            section: which one, and how it is cut.
            tokenizer: of the model that reads it; the one that `section` describes when None.
            output: folder of the run that reads it, whose files are none of the text.
        """
        folder = prepare(section, tokenizer, output)
        self.record: dict[str, Any] = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        self.rows = {side: np.load(folder / f"{side}.npy", mmap_mode="r") for side in SIDES}
        self.tokenizer: PreTrainedTokenizerFast | None = PreTrainedTokenizerFast.from_pretrained(folder)
        self.context = section.context

    def model_fields(self) -> dict[str, Any]:
        tokenizer = self.tokenizer
        assert tokenizer is not None
        return {
            "vocab_size": len(tokenizer),
            "max_position_embeddings": self.context,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        }

    def batch(self, draw: Draw, part: int = 0, parts: int = 1) -> dict[str, Tensor]:
        rows = self.rows["train"]
        places = []
        for position in range(draw.drawn + part, draw.drawn + draw.phase.batch_size, parts):
            epoch, index = divmod(position, len(rows))
            places.append(shuffle_index(index, len(rows), f"{draw.seed}:{epoch}"))
        ids = torch.from_numpy(rows[places].astype(np.int64))
        return {"input_ids": ids, "labels": ids.clone()}

    def digest(self) -> str:
        return str(self.record["digest"])


def prepare(section: TextSection, tokenizer: PreTrainedTokenizerFast | None = None, output: Path | None = None) -> Path:
    """The folder with rows and tokenizer for a text, from the cache where it was prepared before.

    Args:
        section, tokenizer, output: as of `TextSource`.

    Raises:
        UserError: there is no such file, it is not text, it is too short for its rows, or it is not the text of
            `section.digest`.
    """
    identity, documents = find(section, output)
    made_from = {"format": FORMAT, "text": identity, "section": asdict(replace(section, digest=""))}
    if tokenizer is not None:
        made_from["tokenizer"] = [tokenizer.backend_tokenizer.to_str(), tokenizer.eos_token_id]
        if marks_beginnings(tokenizer):
            made_from["pieces"] = "go on"  # before they did, each began with the mark of a beginning
    folder = find_or_make("text", made_from, lambda folder: build(documents, section, folder, tokenizer))
    record = require_whole(folder, "corpus.json", [f"{side}.npy" for side in SIDES])
    if unread := record.get("unread"):
        log.warning(unread)
    made = record["digest"]
    if section.digest and made != section.digest:
        raise UserError(
            f"The text is not the one of data.text.digest ({made} instead of {section.digest}): files, packages or "
            "Python itself have other versions, or are of another system. Install those, or set data.text.digest to '' "
            "to train on this text."
        )
    return folder


def require_text(section: TextSection) -> None:
    """Refuse a path at which there is nothing.

    Raises:
        UserError: there is neither a file nor a folder.
    """
    path = path_of(section.path)
    if section.path and not path.is_file() and not path.is_dir():
        raise UserError(f"There is no text at {path}; give a file or a folder of text.")


def find(section: TextSection, output: Path | None = None) -> tuple[Any, Documents]:
    """What identifies a text, and a function that reads its documents; `output` as of `TextSource`."""
    if bool(section.path) + bool(section.dataset) + bool(section.packages) > 1:
        raise UserError("data.text has more than one of path, dataset and packages; give one of them.")
    if section.dataset:
        from dcinterp.train.data.hub import load_named

        return _columns(load_named(section.dataset, "data.text"), section.column)
    if section.packages:
        named = python_sources(section.packages)
        return [[name, *file_version(file)] for name, file in named], lambda: _texts([file for _, file in named])
    if not section.path:
        root = Path(sysconfig.get_paths()["stdlib"])
        files = sorted(root.glob("*.py"))
        return fingerprint_files(files, root), lambda: map(_text, files)
    require_text(section)
    path = path_of(section.path)
    if path.is_file():
        _text(path)
        return fingerprint_files([path], path.parent), lambda: [_text(path)]
    if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
        from dcinterp.train.data.hub import load_saved

        return _columns(load_saved(path), section.column)
    files = matching(path, section.pattern)
    if output is not None and output.resolve() == path.resolve():
        raise UserError(f"The run would write into the folder of its text, {path}; give another --output.")
    files = _without_runs(files, path, output)
    if not files:
        raise UserError(f"{path} holds no file that matches {section.pattern!r}; change data.text.pattern.")
    return fingerprint_files(files, path), lambda: _readable(files, path)


def _without_runs(files: list[Path], root: Path, output: Path | None) -> list[Path]:
    """The files of a folder that no run below it wrote: a resumed run would read another text, a second one the first.

    Args:
        files: all of them.
        root: the folder.
        output: of the run that reads them, which may have written nothing yet.
    """
    own = output.resolve() if output is not None else None
    folders = {folder for file in files for folder in file.relative_to(root).parents if folder.parts}
    runs = {f for f in folders if is_run(root / f) or (root / f).resolve() == own}
    return [file for file in files if runs.isdisjoint(file.relative_to(root).parents)]


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """A text cut at line ends into pieces of `size` characters or a little more; a long line is cut where it must."""
    piece: list[str] = []
    length = 0
    for line in text.splitlines(keepends=True):
        for start in range(0, len(line), size):
            piece.append(line[start : start + size])
            length += len(piece[-1])
            if length >= size:
                yield "".join(piece)
                piece, length = [], 0
    if piece:
        yield "".join(piece)


def hash_share(piece: str) -> float:
    """A number in [0, 1) that the characters of a piece give, and nothing else."""
    return int.from_bytes(hashlib.blake2b(piece.encode(), digest_size=8).digest(), "big") / 2**64


def threshold(documents: Documents, share: float, needed: int, whole: bool = False) -> float:
    """Pieces whose hash is below this are held out: `share`, or as much more as `needed` characters take."""
    hashes: dict[float, int] = {}
    for text in documents():
        for piece in [text] if whole else pieces(text):
            hashes[hash_share(piece)] = len(piece)
    held = sum(length for number, length in hashes.items() if number < share)
    for number in sorted(number for number in hashes if number >= share)[:-1]:
        if held >= needed:
            break
        held += hashes[number]
        share = np.nextafter(number, 1.0)
    return float(share)


def marks_beginnings(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether a tokenizer reads a text as if a space stood before it, as that of Llama 2 does."""
    alone, behind = _ids(tokenizer, "x"), _ids(tokenizer, "\nx")
    return alone != behind[len(behind) - len(alone) :]


def _ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def _follow(tokenizer: PreTrainedTokenizerFast, piece: str) -> list[int]:
    """The tokens of a piece that goes on, without the mark of a beginning: pieces begin after the end of a line."""
    for beginning in ("\n", "x\n"):
        before, ids = _ids(tokenizer, beginning), _ids(tokenizer, beginning + piece)
        if ids[: len(before)] == before:
            return ids[len(before) :]
    return _ids(tokenizer, piece)


def build(
    documents: Documents, section: TextSection, folder: Path, tokenizer: PreTrainedTokenizerFast | None = None
) -> None:
    """Write rows, tokenizer and a record of both into `folder`; without a `tokenizer`, the one of the section.

    Raises:
        UserError: the text is too short, or a setting makes no sense.
    """
    if section.context < 2 or not 0 < section.validation_share < 1:
        raise UserError("data.text needs a context of at least 2 and a validation_share between 0 and 1.")
    whole = section.hold_out == "files"
    if whole and len({hash_share(text) for text in documents()}) < 2:
        raise UserError(
            "data.text.hold_out is files, and the text has fewer than two different ones; set it to pieces, or give "
            "more files."
        )
    tried: set[float] = set()
    for characters in CHARACTERS:
        limit = threshold(documents, section.validation_share, characters * section.context, whole)
        if limit in tried:
            continue
        tried.add(limit)
        read_by, ids, size = _tokenized(documents, section, limit, tokenizer)
        if all(len(flat) >= section.context for flat in ids.values()):
            break
    tokenizer = read_by
    digest = hashlib.blake2b(digest_size=16)
    record: dict[str, Any] = {}
    for side in SIDES:
        flat = np.array(ids[side])
        rows = flat[: len(flat) // section.context * section.context].reshape(-1, section.context)
        if not len(rows):
            known = list(islice((piece for text in documents() for piece in pieces(text)), 2))
            if not any(text.strip() for text in documents()):
                raise UserError("The text is empty; give one with words in it.")
            if len(known) < 2 and not whole:
                raise UserError(
                    f"The text is too short: it is held out in pieces of about {PIECE:,} characters, and has one piece "
                    f"of {len(known[0]):,}, so that nothing would be left to train on or to measure; give more text."
                )
            raise UserError(
                f"The text is too short: its {side} part has {len(flat)} tokens, fewer than one row of "
                f"{section.context}; give more text, a smaller data.text.context or another data.text.validation_share."
            )
        np.save(folder / f"{side}.npy", rows)
        digest.update(rows.tobytes())
        record[side] = {"rows": len(rows), "tokens": len(flat), "bytes": size[side]}
    write_tokenizer(tokenizer, folder)
    record["digest"] = digest.hexdigest()
    record["unread"] = _unread(section)
    (folder / "corpus.json").write_text(json.dumps(record, indent=1), encoding="utf-8")


def _tokenized(
    documents: Documents, section: TextSection, limit: float, tokenizer: PreTrainedTokenizerFast | None
) -> tuple[PreTrainedTokenizerFast, dict[str, array], dict[str, int]]:
    """The tokenizer, and the tokens and bytes of each side, where what hashes below `limit` is held out."""
    whole = section.hold_out == "files"
    if tokenizer is not None:
        pass
    elif section.tokenizer == "bytes":
        tokenizer = byte_tokenizer(section.context)
    else:
        learnt_from = (piece for side, piece, _ in assign_sides(documents, limit, whole) if side == "train")
        tokenizer = bpe_tokenizer(learnt_from, section.vocabulary, section.context)
    kind = "H" if len(tokenizer) < 2**16 else "I"
    ids = {side: array(kind) for side in SIDES}
    size = dict.fromkeys(SIDES, 0)
    marks = marks_beginnings(tokenizer)
    for side, text, follows in assign_sides(documents, limit, whole):
        if not follows and tokenizer.eos_token_id is not None:
            ids[side].append(tokenizer.eos_token_id)
        ids[side].extend(_follow(tokenizer, text) if follows and marks else _ids(tokenizer, text))
        size[side] += len(text.encode())
    return tokenizer, ids, size


def assign_sides(documents: Documents, limit: float, whole: bool = False) -> Iterator[tuple[str, str, bool]]:
    """(side, piece, whether it goes on where the last piece of its side ended); `whole`: a document has one side."""
    last: dict[str, tuple[int, int]] = {}
    for number, text in enumerate(documents()):
        share = hash_share(text) if whole else None
        for place, piece in enumerate(pieces(text)):
            side = "validation" if (hash_share(piece) if share is None else share) < limit else "train"
            yield side, piece, last.get(side) == (number, place - 1)
            last[side] = (number, place)


def _columns(dataset: Any, column: str) -> tuple[Any, Documents]:
    if column not in dataset.column_names:
        raise UserError(f"The dataset has no column {column!r}; set data.text.column to one of {dataset.column_names}.")
    return [dataset._fingerprint, "without empty rows"], lambda: (
        str(row) for row in dataset[column] if row is not None
    )


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text; convert it, or leave it out.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    if "\0" in text:  # as UTF-16 has it
        raise UserError(f"{path} is not UTF-8 text, as it has zero bytes; convert it, or leave it out.")
    return text


def _readable(files: list[Path], root: Path) -> Iterator[str]:
    """The files that are text; among many there are often pictures and archives."""
    found = False
    for text in _texts(files):
        found = True
        yield text
    if not found:
        raise UserError(f"No file in {root} is UTF-8 text; convert them first.")


def _unread(section: TextSection) -> str | None:
    """The warning for files of a folder that are left out, as they are no text."""
    path = path_of(section.path)
    saved = any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
    if not section.path or not path.is_dir() or saved:
        return None
    files = _without_runs(matching(path, section.pattern), path, None)
    left = [file for file in files if readable_text(file) is None]
    if not left:
        return None
    return (
        f"{len(left):,} of the {len(files):,} files in {path} that match {section.pattern!r} are no UTF-8 text, such "
        f"as {left[0].name}, and are not read."
    )


def _texts(files: list[Path]) -> Iterator[str]:
    """What those of the files say that are UTF-8 text."""
    yield from (text for path in files if (text := readable_text(path)) is not None)


def readable_text(path: Path) -> str | None:
    """What a file says; None where it is no UTF-8 text, or cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        return None
    return None if "\0" in text else text
