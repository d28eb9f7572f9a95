"""Data sets of the `datasets` library, which is optional."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dcinterp.support.errors import UserError, reason


def load_named(name: str, section: str) -> Any:
    """The training split of NAME or NAME:CONFIGURATION.

    Raises:
        UserError: `datasets` is not installed, or gives no such data set.
    """
    datasets = _library()
    name, _, configuration = name.partition(":")
    try:
        return datasets.load_dataset(name, configuration or None, split="train")
    except Exception as error:  # the hub, the network and the format each have errors of their own
        raise UserError(f"{section}.dataset {name!r} could not be loaded: {reason(error)}.") from error


def load_saved(folder: Path) -> Any:
    """What `save_to_disk` wrote: a data set, or the training split of several.

    Raises:
        UserError: `datasets` is not installed, or the folder is damaged.
    """
    datasets = _library()
    try:
        found = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise UserError(f"{folder} holds no readable data set: {reason(error)}.") from error
    if hasattr(found, "column_names") and not isinstance(found.column_names, dict):
        return found
    if "train" not in found:
        raise UserError(f"{folder} has no split 'train', only {', '.join(found)}; save one of them on its own.")
    return found["train"]


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UserError("Data sets need the library `datasets`; install it with: pip install datasets") from error
    return datasets
