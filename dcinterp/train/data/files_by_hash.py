"""Files of text in the order of the hash of what they say: a draw that every machine makes alike.

The hash is the one by which `data.text.hold_out: files` keeps whole files from training, so those of the lowest hashes
are files that such a model has not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dcinterp.support.errors import UserError
from dcinterp.support.paths import matching, path_of
from dcinterp.train.data.installed import is_installed, python_sources
from dcinterp.train.data.text import hash_share, readable_text

Document = tuple[str, str]
"""The name of a file, and what it says."""


def documents_by_hash(text: str, share: float, count: int, pattern: str = "*") -> list[Document]:
    """At most `count` files of a text whose hash is below `share`, the lowest first; those that say the same are one.

    Args:
        text: names of installed packages with commas between them (and "python"), or else a file or folder.
        share: from 0 to 1.
        count: how many.
        pattern: of the files of a folder.

    Raises:
        UserError: there is no such file, folder or package, or none of the files is UTF-8 text.
    """
    found: dict[str, str] = {}
    for name, file in _files(text, pattern):
        said = readable_text(file)
        if said is not None and said.strip():
            found.setdefault(said, name)
    if not found:
        raise UserError(f"No file of {text} is UTF-8 text with anything in it; give others.")
    drawn = sorted((number, name, said) for said, name in found.items() if (number := hash_share(said)) < share)
    return [(name, said) for _, name, said in drawn[:count]]


def is_packages(text: str) -> bool:
    """Whether a text is meant by the names of installed packages, and not by a path."""
    return all(is_installed(name) for name in _names(text))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _files(text: str, pattern: str) -> Iterator[tuple[str, Path]]:
    if is_packages(text):
        yield from python_sources(_names(text))
        return
    path = path_of(text)
    if path.is_file():
        yield path.name, path
    elif path.is_dir():
        yield from ((p.relative_to(path).as_posix(), p) for p in matching(path, f"**/{pattern}"))
    else:
        raise UserError(f"There is no file or folder {text}, and no installed packages of these names; check them.")
