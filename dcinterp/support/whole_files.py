"""Files and folders that are there as a whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNFINISHED = ".*.part"
"""The pattern of what a process that was killed leaves beside the files that it was writing."""


def name_to_be(path: Path) -> str:
    """The name of a file or folder; of one that `whole` is making, the name that it will have."""
    made = re.fullmatch(r"\.(.+)\.\d+-\d+\.part", path.name)
    return made[1] if made else path.name


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place beside `path`, whose file or folder takes the name of `path` when the block ends well.

    What was there stays until then, and stays when the block fails or is stopped. A file that takes the place of
    another has its mode.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # a device, such as /dev/stdout
        yield path
        return
    path = path.resolve()
    if path.is_file() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = f"{os.getpid()}-{threading.get_ident()}"
    beside, before = (path.with_name(f".{path.name}.{writer}.{end}") for end in ("part", "before"))
    try:
        yield beside
        if path.is_dir() and beside.is_dir():
            path.replace(before)
        elif path.is_file():
            with suppress(OSError):  # a file system without modes
                beside.chmod(path.stat().st_mode & 0o777)
        beside.replace(path)
    finally:
        if before.is_dir():
            shutil.rmtree(before) if path.exists() else before.replace(path)
        if beside.is_dir():
            shutil.rmtree(beside)
        beside.unlink(missing_ok=True)
