r"""The inside of a model while it was trained: branch strengths and directions in use, by checkpoint.

    strength   = mean |O| / mean |A|       over heads and visible pairs of the run's probe rows
    cumulative = share of variance in the first components of a layer's QK or OV products

It reads the watch folder of a training run (dcinterp.train.watch wrote it) and computes nothing else. It does not show
that a strong branch matters: a branch that only rescales is strong and may do nothing; ablate it to know. The probe
rows are a few of the run's first batch.

Identity that the tests assert: the last checkpoint's numbers are those of the trained model, measured afresh.

    dcinterp.training_strengths("runs/mine").strength        # [checkpoint, stage, layer, branch]
    diversity = dcinterp.training_diversity("runs/mine")     # cumulative [checkpoint, product, layer, component]
    dcinterp.figures.plot(diversity, checkpoint=-1)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dcinterp.analysis.registry import analysis
from dcinterp.analysis.result import Result
from dcinterp.errors import UserError
from dcinterp.model.compose.branches import BRANCHES
from dcinterp.model.config import STAGES
from dcinterp.model.spectra import cumulative

PRODUCTS = ("QK", "OV")


@dataclass(frozen=True)
class TrainingStrengths(Result):
    """strength [checkpoint, stage, layer, branch] of the composition; NaN where the model has no such branch."""

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "step": ("checkpoint",),
        "strength": ("checkpoint", "stage", "layer", "branch"),
    }

    run: str
    step: Int[Tensor, " checkpoint"]
    strength: Float[Tensor, "checkpoint stage layer branch"]

    def labels(self, axis: str) -> list[Any] | None:
        names = {"checkpoint": self.step.tolist(), "stage": list(STAGES), "branch": list(BRANCHES)}
        return names.get(axis)

    def banners(self) -> list[str]:
        return ["This run's model composes nothing."] if bool(self.strength.isnan().all()) else []


@dataclass(frozen=True)
class TrainingDiversity(Result):
    """cumulative [checkpoint, product, layer, component]: shares of variance, which end at 1."""

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "step": ("checkpoint",),
        "cumulative": ("checkpoint", "product", "layer", "component"),
    }

    run: str
    step: Int[Tensor, " checkpoint"]
    cumulative: Float[Tensor, "checkpoint product layer component"]

    def labels(self, axis: str) -> list[Any] | None:
        return {"checkpoint": self.step.tolist(), "product": list(PRODUCTS)}.get(axis)


@analysis(title="Branch strengths in training")
def training_strengths(run: str | Path) -> TrainingStrengths:
    """How much each branch of the composition did, at every checkpoint of a run.

    Args:
        run: the output folder of `dcinterp train`.

    Raises:
        UserError: the run recorded nothing of the kind.
    """
    steps, found = _read(run, "strengths")
    return TrainingStrengths(run=str(run), step=steps, strength=found)


@analysis(title="Head diversity in training")
def training_diversity(run: str | Path) -> TrainingDiversity:
    """How many directions the heads of each layer used, at every checkpoint of a run.

    Args:
        run: the output folder of `dcinterp train`.

    Raises:
        UserError: the run recorded nothing of the kind.
    """
    steps, found = _read(run, "variances")
    return TrainingDiversity(run=str(run), step=steps, cumulative=cumulative(found))


def _read(run: str | Path, name: str) -> tuple[Tensor, Tensor]:
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
            f"There is nothing watched in {folder}; give the output folder of a training run with evaluation.watch on "
            "that has saved a checkpoint."
        )
    return torch.tensor(steps), torch.stack(found)
