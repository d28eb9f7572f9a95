"""Who may read what is written."""

from __future__ import annotations

from pathlib import Path


def open_like(record: Path) -> None:
    """Give the safetensors files beside `record` its mode.

    The safetensors library makes files that their owner alone can read, whatever the umask says; `record`, which is
    written plainly, has the mode that the umask gives.
    """
    if record.is_file():
        for file in record.parent.glob("*.safetensors"):
            file.chmod(record.stat().st_mode & 0o777)
