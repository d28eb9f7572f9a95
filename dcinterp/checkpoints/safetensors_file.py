"""Safetensors files: the header, held against the file before memory is taken for a tensor, and plain reads."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dcinterp.support.errors import UserError, reason
from dcinterp.support.json_files import require_plain_file
from dcinterp.support.text import shown

LARGEST_HEADER = 100_000_000
"""Bytes; as in the library that writes them."""

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class SafetensorsFile:
    """One safetensors file. Plain reads instead of a memory map: mapped pages would count beside their copies.

    Raises:
        UserError: the header is not one, or says other sizes than the file has.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        size = require_plain_file(path)
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if length > min(size, LARGEST_HEADER):
                    raise ValueError("its header is longer than the file")
                header = json.loads(file.read(length))
            self.data = 8 + length
            self.entries = _entries(header, size - self.data)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged ({reason(error)}); copy or download it again.") from error

    def names(self) -> list[str]:
        return list(self.entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.entries[name]["shape"])

    def dtype(self, name: str) -> torch.dtype | None:
        return _DTYPES.get(self.entries[name]["dtype"])

    def read(self, name: str) -> Tensor:
        entry = self.entries[name]
        if entry["dtype"] not in _DTYPES:
            raise UserError(
                f"{name} in {self.path} is of type {shown(entry['dtype'])}, which is not a plain number type; convert "
                "the checkpoint to BF16, F16 or F32 first."
            )
        tensor = torch.empty(entry["shape"], dtype=_DTYPES[entry["dtype"]])
        with self.path.open("rb") as file:
            file.seek(self.data + entry["data_offsets"][0])
            if tensor.numel():
                octets: Any = tensor.flatten().view(torch.uint8).numpy()
                file.readinto(octets)
        return tensor


def _entries(header: Any, octets: int) -> dict[str, dict[str, Any]]:
    """The entries of a header whose tensors fill the `octets` of data one after the other.

    Raises:
        ValueError: they do not, or something is not what it must be; the message names the tensor and the field.
    """
    if not isinstance(header, dict):
        raise ValueError("its header is not a table of tensors")
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    for name, entry in entries.items():
        _check_entry(shown(name), entry)
    end = 0
    for name, entry in sorted(entries.items(), key=lambda pair: pair[1]["data_offsets"]):
        if entry["data_offsets"][0] != end:
            raise ValueError(f"data_offsets of {shown(name)} do not follow those of the tensor before it")
        end = entry["data_offsets"][1]
    if end != octets:
        raise ValueError("its size does not fit its header")
    return entries


def _check_entry(name: str, entry: Any) -> None:
    if not isinstance(entry, dict):
        raise ValueError(f"the entry of {name} is {shown(entry, 30)}")
    for field in ("dtype", "shape", "data_offsets"):
        if field not in entry:
            raise ValueError(f"{name} has no {field}")
    if not isinstance(entry["dtype"], str):
        raise ValueError(f"dtype of {name} is {shown(entry['dtype'], 30)}")
    for field in ("shape", "data_offsets"):
        value = entry[field]
        if not isinstance(value, list) or not all(type(size) is int and 0 <= size < 2**62 for size in value):
            raise ValueError(f"{field} of {name} is {shown(value, 30)}")
    offsets, dtype = entry["data_offsets"], _DTYPES.get(entry["dtype"])
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"data_offsets of {name} are {shown(offsets, 40)}")
    if dtype is not None and prod(entry["shape"]) * dtype.itemsize != offsets[1] - offsets[0]:
        raise ValueError(f"the size of {name} is wrong: shape {shown(entry['shape'], 40)}, {offsets[1] - offsets[0]} B")
