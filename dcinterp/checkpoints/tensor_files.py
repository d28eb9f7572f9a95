"""The tensors of a checkpoint folder, read one at a time, so that a model is never in memory twice."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dcinterp.support.errors import UserError

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
    """One safetensors file. Plain reads instead of a memory map: mapped pages would count beside their copies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        size = path.stat().st_size
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if length > size:
                    raise ValueError("its header is longer than the file")
                header = json.loads(file.read(length))
            self.data = 8 + length
            self.entries: dict[str, dict[str, Any]] = {k: v for k, v in header.items() if k != "__metadata__"}
            ends = [entry["data_offsets"][1] for entry in self.entries.values()]
            if self.data + max(ends, default=0) != size:
                raise ValueError("its size does not fit its header")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({error}); copy or download it again.") from error

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
                f"{name} in {self.path} is of type {entry['dtype']}, which is not a plain number type; convert the "
                "checkpoint to BF16, F16 or F32 first."
            )
        tensor = torch.empty(entry["shape"], dtype=_DTYPES[entry["dtype"]])
        start, end = entry["data_offsets"]
        if end - start != tensor.numel() * tensor.element_size():
            raise UserError(f"{self.path} is damaged (the size of {name} is wrong); copy or download it again.")
        with self.path.open("rb") as file:
            file.seek(self.data + start)
            if tensor.numel():
                octets: Any = tensor.flatten().view(torch.uint8).numpy()
                file.readinto(octets)
        return tensor


class PickledFile:
    """One .bin file. It is read whole, without running code from it; each tensor is let go once read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            raise UserError(
                f"{path} is damaged or holds more than tensors, which is not safe to open "
                f"({str(error).splitlines()[0]}); ask for a safetensors file."
            ) from error
        self.tensors: dict[str, Tensor] = {k: v for k, v in tensors.items() if isinstance(v, Tensor)}
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


class CheckpointTensors:
    """All tensors of a folder, in however many files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = [self._open(path) for path in checkpoint_files(folder)]
        self.home = {name: file for file in self.files for name in file.names()}

    def __iter__(self) -> Iterator[str]:
        """Names, file by file."""
        return iter(self.home)

    def __contains__(self, name: str) -> bool:
        return name in self.home

    def shape(self, name: str) -> tuple[int, ...]:
        return self.home[name].shape(name)

    def dtype(self, name: str) -> torch.dtype | None:
        """As stored; None for a type that is no plain number."""
        return self.home[name].dtype(name)

    def read(self, name: str) -> Tensor:
        """The tensor in memory of its own. A large one of a .bin file can be read only once."""
        return self.home[name].read(name)

    @staticmethod
    def _open(path: Path) -> SafetensorsFile | PickledFile:
        return SafetensorsFile(path) if path.suffix == ".safetensors" else PickledFile(path)


def checkpoint_files(folder: Path) -> list[Path]:
    """The weight files of a folder: safetensors where there are any, .bin files otherwise.

    Raises:
        UserError: there are none, or the index names a file that is missing.
    """
    for suffix, usual in (("safetensors", "model.safetensors"), ("bin", "pytorch_model.bin")):
        if (folder / usual).is_file():
            return [folder / usual]
        shards = sorted(folder.glob(f"*-of-*.{suffix}"))
        files = shards or sorted(path for path in folder.glob(f"*.{suffix}") if path.name != "training_args.bin")
        indices = sorted(folder.glob(f"*.{suffix}.index.json"))
        if indices:
            try:
                listed = set(json.loads(indices[0].read_text(encoding="utf-8"))["weight_map"].values())
            except (ValueError, KeyError, AttributeError) as error:
                raise UserError(f"{indices[0]} is not a valid index of weights; copy or download it again.") from error
            missing = sorted(name for name in listed if not (folder / name).is_file())
            if missing:
                raise UserError(f"{folder} lacks {missing[0]}, which {indices[0].name} lists; copy or download it.")
            return [folder / name for name in sorted(listed)]
        if files:
            return files
    raise UserError(f"{folder} has a config.json but no safetensors weights; copy model.safetensors into it.")
