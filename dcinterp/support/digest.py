"""Hashes of plain data and of sources: the same for the same content, in any process and on any machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def json_digest(tree: Any, size: int = 8) -> str:
    """A hash of `size` bytes of what JSON can hold, whatever the order of its keys, in hexadecimal digits."""
    return hashlib.blake2b(json.dumps(tree, sort_keys=True).encode(), digest_size=size).hexdigest()


def sources_digest(files: Iterable[tuple[Path, Path]]) -> str:
    """A hash of four bytes of what files hold and are called, each counted from a folder, in hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=4)
    for folder, file in files:
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
