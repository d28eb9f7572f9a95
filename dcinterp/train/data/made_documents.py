"""Documents that several runs read, made once and kept in files: the same seed gives the same to every model."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dcinterp.support.digest import json_digest
from dcinterp.support.progress import Progress, silent
from dcinterp.train.config.recipe import DataSection, TrainConfig
from dcinterp.train.data.batches import NOT_SCORED, Batches
from dcinterp.train.data.data_source import data_source_name, open_data_source

PIECE = 50
"""Steps in a file."""
OPEN: dict[str, Batches] = {}
"""What this process makes documents of, by the name of the data section."""


class MadeBatches:
    """The batches of a run, read from files."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps = folder, steps
        self.at = -1
        self.piece: dict[str, Any] = {}

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        number, inside = divmod(step, PIECE)
        if number != self.at:
            with np.load(self.folder / f"{number}.npz") as arrays:
                self.at, self.piece = number, {key: arrays[key] for key in arrays.files}
        ids = torch.from_numpy(self.piece[f"ids{inside}"].astype(np.int64))
        scored = torch.from_numpy(self.piece[f"scored{inside}"])
        return {"input_ids": ids, "labels": ids.where(scored, NOT_SCORED)}


def open_made(batches: Batches, folder: Path | None) -> Batches | MadeBatches:
    """The same batches from files of `folder` where they are all there, else as they are made anew."""
    place = folder / _name(batches.section) if folder is not None else None
    if place is None or not all((place / f"{number}.npz").is_file() for number in range(_pieces(len(batches)))):
        return batches
    return MadeBatches(place, len(batches))


def make_documents(
    configs: Sequence[TrainConfig], folder: Path, processes: int, progress: Progress | None = None
) -> None:
    """Make the documents that more than one run reads, where that takes longer than to read them from a file.

    Args:
        configs: of the runs.
        folder: that receives them; a folder for each data section, a file for every `PIECE` steps.
        processes: how many make them at a time.
        progress: called after every file; raising `Cancelled` ends it.
    """
    progress = progress or silent
    by_name: dict[str, list[TrainConfig]] = {}
    for config in configs:
        generated = data_source_name(config.data.phases[0]) in ("tasks", "puzzle")
        if generated and not any(phase.tokens for phase in config.data.phases):
            by_name.setdefault(_name(config.data), []).append(config)
    shared = [each[0] for each in by_name.values() if len(each) > 1]
    pieces = [(config, folder, number) for config in shared for number in range(_pieces(config.steps))]
    if not pieces:
        return
    # Not forked: the parent may have threads. And it is the parent whom Ctrl-C is for.
    begin = partial(_begin, os.getpid())
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=begin) as pool:
        made = [pool.submit(_make, piece) for piece in pieces]
        try:
            for number, each in enumerate(as_completed(made)):
                each.result()
                progress(number + 1, len(pieces), "making the documents that several runs read")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it, however it ends."""

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()


def _make(piece: tuple[TrainConfig, Path, int]) -> None:
    config, folder, number = piece
    torch.set_num_threads(1)
    place = folder / _name(config.data)
    place.mkdir(parents=True, exist_ok=True)
    batches = _opened(config, place)
    arrays: dict[str, Any] = {}
    for step in range(number * PIECE, min((number + 1) * PIECE, len(batches))):
        batch = batches[step]
        arrays[f"ids{step % PIECE}"] = batch["input_ids"].numpy().astype(np.int32)
        arrays[f"scored{step % PIECE}"] = (batch["labels"] != NOT_SCORED).numpy()
    aside = place / f"{number}.unfinished.npz"
    np.savez(aside, **arrays)
    aside.replace(place / f"{number}.npz")


def _opened(config: TrainConfig, place: Path) -> Batches:
    """The batches of a config, opened once in a process."""
    name = _name(config.data)
    if name not in OPEN:
        OPEN[name] = Batches(config.data, open_data_source(config, place / f"words-{os.getpid()}"))
    return OPEN[name]


def _pieces(steps: int) -> int:
    return -(-steps // PIECE)


def _name(section: DataSection) -> str:
    return json_digest(asdict(section))
