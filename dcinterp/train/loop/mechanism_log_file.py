"""What `mechanism_log` wrote, read back; without transformers, so that whoever only draws it need not wait for them."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dcinterp.support.errors import UserError

PRODUCTS = ("QK", "OV")


def read_log(run: str | Path, name: str) -> tuple[Int[Tensor, " checkpoint"], Tensor]:
    """(steps, "strengths" or "variances" of every checkpoint) that a run has recorded.

    Args:
        run: the output folder of `dcinterp train`.
        name: which of the two.

    Raises:
        UserError: the run recorded nothing of the kind, or a file is damaged.
    """
    folder = Path(run) / "watch"
    steps, found = [], []
    for path in sorted(folder.glob("step-*.safetensors")):
        try:
            found.append(load_file(path)[name])
        except (SafetensorError, OSError, KeyError) as error:
            raise UserError(f"{path} is damaged ({error}); remove it, and the other checkpoints are shown.") from error
        steps.append(int(path.stem.removeprefix("step-")))
    if not found:
        raise UserError(
            f"Nothing is recorded in {folder}; give the output folder of a training run with evaluation.watch on "
            "that has saved a checkpoint."
        )
    return torch.tensor(steps), torch.stack(found)
