"""Weights in a .bin file of torch: read whole, without running code from it."""

from __future__ import annotations

import errno
import pickletools
import zipfile
from io import BytesIO
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from dcinterp.support.errors import UserError, reason
from dcinterp.support.json_files import require_plain_file


class PickledFile:
    """One .bin file. It is read whole, without running code from it; each tensor is let go once read.

    Raises:
        UserError: it is damaged, holds more than tensors, or no table of tensors at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        require_sizes(path)
        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # the reader raises whatever the bytes of a damaged file lead it to
            raise UserError(
                f"{path} is damaged or holds more than tensors, which is not safe to open ({reason(error, 60)}); ask "
                "for a safetensors file."
            ) from error
        if not isinstance(tensors, dict):
            raise UserError(
                f"{path} holds a {type(tensors).__name__}, not a table of tensors by name; ask for a safetensors file."
            )
        self.tensors: dict[str, Tensor] = {k: v for k, v in tensors.items() if isinstance(v, Tensor)}
        for name, tensor in self.tensors.items():
            if not isinstance(name, str) or tensor.layout != torch.strided or _spread(tensor):
                raise UserError(f"{path} holds {name!r}, which is not a plain tensor; ask for a safetensors file.")
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        self.dtypes = {name: tensor.dtype for name, tensor in self.tensors.items()}

    def names(self) -> list[str]:
        return list(self.shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def dtype(self, name: str) -> torch.dtype | None:
        return self.dtypes[name]

    def read(self, name: str) -> Tensor:
        return self.tensors.pop(name) if self.tensors[name].numel() > 2**16 else self.tensors[name]


def _spread(tensor: Tensor) -> bool:
    """Whether a tensor has more entries than it has memory for, by a stride of zero."""
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


def _require_no_room(pickled: IO[bytes]) -> None:
    """Refuse a pickle that asks for bytes of a size which it names, of all that torch lets it ask for."""
    for _, argument, _ in pickletools.genops(pickled):
        if isinstance(argument, str) and argument.split(" ")[-1] == "bytearray":
            raise ValueError("it asks for bytes that it does not hold")


def _require_small(pickled: IO[bytes], size: int) -> None:
    """Refuse a pickle with a number that could only be a size, and is larger than the file."""
    for _, argument, _ in pickletools.genops(pickled):
        if isinstance(argument, int) and not -(2**31) < argument <= max(size, 2**16) and argument < 2**64:
            raise ValueError(f"it says a size of {argument:,} bytes")


def _read(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """What an entry holds, whatever its checksum: torch can write files without any."""
    with file.open(entry) as opened:
        opened._expected_crc = None  # type: ignore[attr-defined]
        return opened.read()


def require_sizes(path: Path) -> int:
    """Refuse a file that says it holds more than it does, before memory is taken for it; at most how many tensors.

    Raises:
        UserError: as said, or it is no plain file.
    """
    size = require_plain_file(path)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:
                entries = file.infolist()
                if sum(entry.file_size for entry in entries) > size:
                    raise ValueError("it would unpack to more than its size")
                for entry in entries:
                    if entry.filename.endswith(".pkl"):
                        _require_no_room(BytesIO(_read(file, entry)))
            return len(entries)
        with path.open("rb") as file:  # as torch wrote before 1.6: five pickles, then the numbers
            for _ in range(5):
                _require_small(file, size)
    except MemoryError:
        raise
    except Exception as error:  # of as many kinds as there are ways to damage a zip file
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # of the disk, not of the file
            raise
        raise UserError(
            f"{path} is damaged or holds more than tensors, which is not safe to open ({reason(error, 60)}); ask for a "
            "safetensors file."
        ) from error
    return size
