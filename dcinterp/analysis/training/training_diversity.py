r"""How many directions the heads of a model used during training, by checkpoint.

    cumulative = share of variance in the first components of a layer's QK or OV products

It reads the watch folder of a training run (dcinterp.train.loop.mechanism_log wrote it) and computes nothing else. It
does not show what the directions are used for, nor that more of them are better.

Identity that the tests assert: the last checkpoint's numbers are those of the trained model, measured afresh.

    diversity = dcinterp.training_diversity("runs/mine")     # cumulative [checkpoint, product, layer, component]
    dcinterp.figures.plot(diversity, checkpoint=-1)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.checkpoints.names import folder_of
from dcinterp.model.spectra import cumulative
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.train.loop.mechanism_log_file import PRODUCTS, read_log


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


@analysis(
    title="Head diversity in training",
    question="How many directions did the heads use during training?",
    guide="training.md",
    example={"run": "runs/my-run"},
)
def training_diversity(run: str | Path) -> TrainingDiversity:
    """How many directions the heads of each layer used, at every checkpoint of a run.

    Args:
        run: the output folder of `dcinterp train`, or the name of a shipped model.

    Raises:
        UserError: the run did not record it.
    """
    steps, found = read_log(folder_of(run), "variances")
    return TrainingDiversity(run=str(run), step=steps, cumulative=cumulative(found))
