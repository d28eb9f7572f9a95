"""JSON files that people give us: read whole, or refused in one sentence that names the file and the way out."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from dcinterp.support.errors import UserError, reason
from dcinterp.support.text import shown

LARGEST = 2**28
"""Bytes of a JSON file; what is larger is no configuration, index or record."""


def read_json_object(path: Path, *, what: str = "a JSON object", way: str = "copy it again from its source") -> Any:
    """The object in a JSON file.

    Args:
        path: the file.
        what: what it ought to hold, for the message.
        way: the way out, for the message.

    Raises:
        UserError: it is not a plain file, not valid JSON (or nested without end), or does not hold an object.
    """
    require_plain_file(path, largest=LARGEST)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
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
        raise UserError(f"{path} is {kind}, not a file; put the file there that belongs there.")
    if largest is not None and found.st_size > largest:
        raise UserError(f"{path} is larger than such a file can be ({found.st_size:,} bytes); check what it is.")
    return found.st_size
