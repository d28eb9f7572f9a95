"""JSON files that people give us: read whole, or refused in one sentence that names the file and the way out."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dcinterp.support.errors import UserError, reason
from dcinterp.support.text import shown

LARGEST = 2**28
"""Bytes of a JSON file; what is larger is no configuration, index or record."""
DEEPEST = 64
"""Lists and objects one in another; nothing of ours nests half as deep, and what walks through data calls itself."""

HALF, HALF_LETTER = re.compile(r"\\ud[89a-f]", re.IGNORECASE), re.compile("[\ud800-\udfff]")


def parse_json(text: str) -> Any:
    """What a JSON text of ours holds, without what readers of JSON pass over in silence.

    Raises:
        ValueError: it is not valid JSON, gives a name twice, nests deeper than `DEEPEST`, or holds what is no letter.
    """
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    level, depth = [found], 0
    while level := [each for value in level for each in _inside(value)]:
        depth += 1
        if depth > DEEPEST:
            raise ValueError("it is nested too deep")
    # Halves of letters, which no file and no page can show.
    if HALF.search(text) and HALF_LETTER.search(json.dumps(found, ensure_ascii=False)):
        raise ValueError("it holds half a letter, such as \\ud800")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"it gives {shown(twice, 40)} twice")
    return found


def _inside(value: Any) -> Iterable[Any]:
    """The lists and objects in a list or an object."""
    several = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (each for each in several if isinstance(each, dict | list))


def read_json_object(
    path: Path, *, what: str = "a JSON object", way: str = "copy it again from its source", ours: bool = False
) -> Any:
    """The object in a JSON file.

    Args:
        path: the file.
        what: what it ought to hold, for the message.
        way: the way out, for the message.
        ours: whether a program of ours wrote it, so that it is read as strictly as `parse_json` does.

    Raises:
        UserError: it is not a plain file, not valid JSON (or nested without end), or does not hold an object.
    """
    require_plain_file(path, largest=LARGEST)
    try:
        found = (parse_json if ours else json.loads)(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({reason(error)}); {way}.") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} does not hold {what}; {way}.")
    return found


def read_field(fields: dict[str, Any], name: str, kind: type, path: Path, *, way: str = "mend it") -> Any:
    """One field of what `read_json_object` read.

    Raises:
        UserError: it is missing, or of another type than `kind`; the message names the file and the field.
    """
    value = fields.get(name)
    if name not in fields:
        raise UserError(f"{path} has no field {name!r}; {way}.")
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        words = {dict: "an object", list: "a list", str: "text", int: "a whole number", bool: "true or false"}
        raise UserError(f"{name} in {path} is {shown(value)}; it must be {words.get(kind, kind.__name__)}: {way}.")
    return value


def require_plain_file(path: Path, *, largest: int | None = None) -> int:
    """The size of a file, in bytes; devices and pipes, which may never end, are refused.

    Raises:
        UserError: there is no such file, or it is a folder, a device, a pipe or a loop of links, or larger than that.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        said = getattr(error, "strerror", None) or reason(error)
        raise UserError(f"{path} cannot be read ({said}); check the path.") from error
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device or a pipe"
        raise UserError(f"{path} is {kind}, not a file; give a file.")
    if largest is not None and found.st_size > largest:
        raise UserError(f"{path} is larger than such a file can be ({found.st_size:,} bytes); check what it is.")
    return found.st_size
