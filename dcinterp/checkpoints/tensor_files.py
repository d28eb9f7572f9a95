"""The tensors of a checkpoint folder, read one at a time, so that a model is never in memory twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from dcinterp.checkpoints.pickled_file import PickledFile, require_sizes
from dcinterp.checkpoints.safetensors_file import SafetensorsFile
from dcinterp.support.errors import UserError
from dcinterp.support.json_files import read_field, read_json_object, require_plain_file
from dcinterp.support.text import shown


class CheckpointTensors:
    """All tensors of a folder, in however many files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = [self._open(path) for path in checkpoint_files(folder)]
        self.home: dict[str, SafetensorsFile | PickledFile] = {}
        for file in self.files:
            for name in file.names():
                if name in self.home:
                    raise UserError(
                        f"{shown(name)} is both in {self.home[name].path.name} and in {file.path}; keep one checkpoint "
                        "in a folder."
                    )
                self.home[name] = file
        if not self.home:
            raise UserError(f"The weights in {folder} hold no tensors; copy the model's files again.")

    def __iter__(self) -> Iterator[str]:
        """Names, file by file."""
        return iter(self.home)

    def __len__(self) -> int:
        return len(self.home)

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


NO_WEIGHTS = ("training_args.bin",)
"""Files that end like weights and hold none."""


def checkpoint_files(folder: Path) -> list[Path]:
    """The weight files of a folder: safetensors where there are any, .bin files otherwise.

    Raises:
        UserError: there are none, or one is not a plain file, or the index names one that is missing or elsewhere.
    """
    for suffix, usual in (("safetensors", "model.safetensors"), ("bin", "pytorch_model.bin")):
        if (folder / usual).exists() or (folder / usual).is_symlink():
            require_plain_file(folder / usual)
            return [folder / usual]
        indices = sorted(folder.glob(f"*.{suffix}.index.json"))
        if indices:  # Mistral puts a second one beside its weights, of the same in another layout
            own = folder / f"{usual}.index.json"
            return [folder / name for name in indexed_files(own if own in indices else indices[0])]
        shards = sorted(folder.glob(f"*-of-*.{suffix}"))
        files = shards or sorted(path for path in folder.glob(f"*.{suffix}") if path.name not in NO_WEIGHTS)
        for file in files:
            require_plain_file(file)
        if files:
            return files
    raise UserError(f"{folder} has a config.json but no safetensors weights; copy model.safetensors into it.")


def indexed_files(index: Path) -> list[str]:
    """The names of the files that an index of weights lists, each of which is there, below the folder of the index.

    Raises:
        UserError: it is not a valid index, or it names a file that is missing or elsewhere.
    """
    way = "copy or download it again"
    fields = read_json_object(index, what="an index of weights", way=way)
    table = read_field(fields, "weight_map", dict, index, way=way)
    for tensor, name in table.items():
        inside = (
            isinstance(name, str) and not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
        )
        if not inside or not name.strip() or "\\" in name:
            raise UserError(
                f"weight_map in {index} gives {shown(name)} for {shown(tensor)}, which is not a file of this folder; "
                f"{way}."
            )
    listed = sorted(set(table.values()))
    if not listed:
        raise UserError(f"weight_map in {index} is empty; {way}.")
    for name in listed:
        try:
            found = (index.parent / name).exists()
        except (OSError, ValueError):
            found = False
        if not found:
            raise UserError(f"{index.parent} lacks {shown(name)[1:-1]}, which {index.name} lists; copy or download it.")
        require_plain_file(index.parent / name)
    return listed


def count_tensors(folder: Path) -> int:
    """How many tensors a folder holds, by its headers; of .bin files, at most how many.

    Raises:
        UserError: as `checkpoint_files`, or a header does not fit its file.
    """
    files = checkpoint_files(folder)
    return sum(
        len(SafetensorsFile(path).names()) if path.suffix == ".safetensors" else require_sizes(path) for path in files
    )
