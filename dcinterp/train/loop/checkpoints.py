"""Checkpoints that are whole or absent.

A checkpoint is written into a folder aside, sealed with the size and checksum of each of its files, forced to the disk
and only then renamed into place, which a file system does at once or not at all. So a process that is killed at any
moment leaves the last checkpoint as it was. What is damaged later (a bad disk, a copy cut short) shows in the seal.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dcinterp.support.errors import UserError

PREFIX = "checkpoint-"
STAGING, SEAL, DAMAGED = "unfinished", "seal.json", "damaged-"
WEIGHTS = (".safetensors", ".bin", ".distcp")
READ = (*WEIGHTS, ".pt", ".pth", ".json")
"""Endings of the files that a resumed run may read; a seal must list all of them."""
BLOCK = 1 << 20

log = logging.getLogger(__name__)


def steps_in(checkpoints: Path) -> list[int]:
    """Steps of the checkpoints in a folder, oldest first."""
    names = [p.name.removeprefix(PREFIX) for p in checkpoints.glob(f"{PREFIX}*") if p.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal())


def seal(folder: Path) -> None:
    """Write down size and checksum of every file below `folder`, and force them all to the disk."""
    listed = {str(path.relative_to(folder)): _measure(path) for path in _files(folder)}
    (folder / SEAL).write_text(json.dumps(listed, indent=1), encoding="utf-8")
    force(folder)


def force(folder: Path) -> None:
    """Return when everything below `folder` is on the disk."""
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def write_whole(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder aside, and put it in the place of `folder`: what is there is whole, or what was before.

    Raises:
        UserError: the disk did not take it.
    """
    aside = folder.parent / STAGING / folder.name
    before = aside.with_name(f"{folder.name}.before")
    if before.is_dir() and not folder.exists():  # a process was killed between the two
        before.replace(folder)
    shutil.rmtree(aside.parent, ignore_errors=True)
    try:
        write(aside)
        force(aside)
        if folder.is_dir():
            folder.replace(before)
        try:
            aside.replace(folder)
        except OSError:
            if before.is_dir():
                before.replace(folder)
            raise
        shutil.rmtree(aside.parent, ignore_errors=True)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise write_error(f"The folder {folder}", error, folder.parent / "checkpoints") from error


def publish(staged: Path, checkpoints: Path, keep: int) -> None:
    """Move a sealed checkpoint into its place among `checkpoints`, and remove all but the newest `keep`."""
    place = checkpoints / staged.name
    if place.exists():
        shutil.rmtree(place)
    staged.replace(place)
    _sync(checkpoints)
    for step in steps_in(checkpoints)[: -max(1, keep)]:
        shutil.rmtree(checkpoints / f"{PREFIX}{step}", ignore_errors=True)


def find_damage(folder: Path) -> str:
    """What is wrong with a checkpoint, or nothing: it is exactly what was written, and its weights are finite."""
    path = folder / SEAL
    if not path.is_file():
        return f"its {SEAL} is missing, so it cannot be verified"
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        return f"its {SEAL} cannot be read ({error})"
    if not isinstance(listed, dict):
        return f"its {SEAL} does not list files with their checksums"
    present = [str(file.relative_to(folder)) for file in _files(folder) if file.suffix in READ]
    weights = [name for name in listed if Path(name).suffix in WEIGHTS]
    for name in ["trainer_state.json", *present]:
        if name not in listed:
            return f"its {SEAL} does not list {name}"
    if not weights:
        return f"its {SEAL} lists no weights"
    for name, measured in listed.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if _measure(file) != measured:
            return f"{name} is not what was written"
    return "" if all(_is_finite(folder / name) for name in weights) else "its weights are NaN or infinite"


def last_good(checkpoints: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, with a sentence on each newer one that is not.

    What was left unfinished is removed; damaged checkpoints are renamed, so that nothing continues from them.
    """
    shutil.rmtree(checkpoints / STAGING, ignore_errors=True)
    sentences: list[str] = []
    for step in reversed(steps_in(checkpoints)):
        folder = checkpoints / f"{PREFIX}{step}"
        if not (wrong := find_damage(folder)):
            return folder, sentences
        aside = checkpoints / f"{DAMAGED}{folder.name}"
        shutil.rmtree(aside, ignore_errors=True)
        folder.replace(aside)
        sentences.append(f"The checkpoint of step {step} is damaged ({wrong}) and was set aside as {aside}.")
    return None, sentences


def write_error(what: str, error: Exception, checkpoints: Path) -> UserError:
    """The sentence for a disk that did not take a file, with the way out."""
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error).splitlines()[0]
    steps = steps_in(checkpoints)
    kept = f"continue with --resume from step {steps[-1]}" if steps else "start again"
    return UserError(f"{what} could not be written ({reason}); make room on the disk and {kept}.")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SEAL)


def _measure(path: Path) -> list[int]:
    """[bytes, CRC-32] of a file."""
    size = checksum = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return [size, checksum]


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows opens no folder
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)  # nor syncs what is open to be read
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_finite(path: Path) -> bool:
    """Whether all weights of a file are finite numbers; of another format than safetensors it is not looked at."""
    if path.suffix != ".safetensors":
        return True
    with safe_open(path, framework="pt") as tensors:
        return all(bool(tensors.get_tensor(name).isfinite().all()) for name in tensors.keys())  # noqa: SIM118
