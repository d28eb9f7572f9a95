r"""How strong each branch of the composition was during training, by checkpoint.

    strength   = mean |O| / mean |A|       over heads and visible pairs of the run's probe rows

It reads the watch folder of a training run (dcinterp.train.loop.mechanism_log wrote it) and computes nothing else. It
does not show that a strong branch matters: a branch that only rescales is strong and may have no effect; ablate it to
find out. The probe rows are a few of the run's first batch.

Identity that the tests assert: the last checkpoint's numbers are those of the trained model, measured afresh.

    dcinterp.training_strengths("runs/mine").strength        # [checkpoint, stage, layer, branch]
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.checkpoints.names import folder_of
from dcinterp.model.compose.branch_table import HOOKS
from dcinterp.model.config import STAGES
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.train.loop.mechanism_log_file import read_log


@dataclass(frozen=True)
class TrainingStrengths(Result):
    """strength [checkpoint, stage, layer, branch] of the composition; NaN if the model has no such branch."""

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "step": ("checkpoint",),
        "strength": ("checkpoint", "stage", "layer", "branch"),
    }

    run: str
    step: Int[Tensor, " checkpoint"]
    strength: Float[Tensor, "checkpoint stage layer branch"]

    def labels(self, axis: str) -> list[Any] | None:
        names = {"checkpoint": self.step.tolist(), "stage": list(STAGES), "branch": list(HOOKS)}
        return names.get(axis)

    def warnings(self) -> list[str]:
        return ["The model of this run has no composition."] if bool(self.strength.isnan().all()) else []


@analysis(
    title="Branch strengths in training",
    question="How strong was each branch during training?",
    guide="training.md",
    example={"run": "runs/my-run"},
)
def training_strengths(run: str | Path) -> TrainingStrengths:
    """How strong each branch of the composition was, at every checkpoint of a run.

    Args:
        run: the output folder of `dcinterp train`, or the name of a shipped model.

    Raises:
        UserError: the run did not record it.
    """
    steps, found = read_log(folder_of(run), "strengths")
    return TrainingStrengths(run=str(run), step=steps, strength=found)
