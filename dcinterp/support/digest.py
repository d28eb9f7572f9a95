"""A hash of plain data: the same for the same content, in any process and on any machine."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def json_digest(tree: Any, size: int = 8) -> str:
    """A hash of `size` bytes of what JSON can hold, whatever the order of its keys, in hexadecimal digits."""
    return hashlib.blake2b(json.dumps(tree, sort_keys=True).encode(), digest_size=size).hexdigest()
