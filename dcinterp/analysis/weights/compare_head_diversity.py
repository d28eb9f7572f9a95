"""Head diversity of several models, side by side: the curves of `head_diversity`, each the mean over its layers.

    share(n) = mean over layers of the share of variance that the first n components capture

It does not show more than the curves side by side: models of other widths have other numbers of components, and the
curve of a narrower model stays 1 beyond its width.

Identity that the tests assert: each row is the mean over layers of that model's `head_diversity`.

    both = dcinterp.compare_head_diversity(model, other="transformer++")
    dcinterp.figures.plot(both)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.analysis.weights.head_diversity import DRAWS, HeadDiversity, head_diversity
from dcinterp.bridge.protocol import Bridge
from dcinterp.model.spectra import Reading
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, silent
from dcinterp.support.text import apart


@dataclass(frozen=True)
class HeadDiversityComparison(Result):
    """The curves of several models, each the mean over its layers; beyond a model's d_model a share stays 1.

    qk_other, ov_other and their effective ranks: the same with the products along the other axis, `other_reading`;
    None for "product" and in results of version 0.1.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        **{name: ("model", "component") for name in ("qk", "ov", "random", "qk_other", "ov_other")},
        **{name: ("model",) for name in ("qk_effective_rank", "ov_effective_rank", "components")},
        **{name: ("model",) for name in ("qk_other_effective_rank", "ov_other_effective_rank")},
    }

    models: tuple[str, ...]
    reading: str
    centred: bool
    qk: Float[Tensor, "model component"]
    ov: Float[Tensor, "model component"]
    random: Float[Tensor, "model component"]
    qk_effective_rank: Float[Tensor, " model"]
    ov_effective_rank: Float[Tensor, " model"]
    components: Tensor
    other_reading: str | None = None
    qk_other: Float[Tensor, "model component"] | None = None
    ov_other: Float[Tensor, "model component"] | None = None
    qk_other_effective_rank: Float[Tensor, " model"] | None = None
    ov_other_effective_rank: Float[Tensor, " model"] | None = None

    def labels(self, axis: str) -> list[str] | None:
        return list(self.models) if axis == "model" else None


@analysis(
    title="Head diversity of two models",
    question="Do the heads of another model use more directions?",
    guide="analyses/head-diversity.md",
    example={},
)
def compare_head_diversity(
    bridge: Bridge,
    *,
    other: str = "transformer++",
    reading: Reading = "concatenated",
    centre: bool = True,
    progress: Progress = silent,
) -> HeadDiversityComparison:
    """Head diversity of this model and of another one, side by side.

    Args:
        bridge: any bridge.
        other: a shipped model, a folder, or a hub id.
        reading: "concatenated" (the products side by side), "stacked" (on top of each other) or "product" (the product
            of the concatenation). With either of the first two the other one is measured as well.
        centre: take the mean row off first, as principal component analysis does.
        progress: called after each layer.

    Cost: that of `head_diversity` for both, and loading the other model.

    Raises:
        UserError: there is no such model, or as `head_diversity` raises.
    """
    from dcinterp.checkpoints.load import load_beside  # with transformers and all: not for the help

    second = load_beside(bridge, other)
    sizes = [model.cfg.n_layers + DRAWS for model in (bridge, second)]

    def measure(model: Bridge, before: int) -> HeadDiversity:
        def report(done: int, total: int, message: str = "") -> None:
            progress(before + done, sum(sizes), message)

        return head_diversity(model, reading=reading, centre=centre, progress=report)

    results = [measure(bridge, 0), measure(second, sizes[0])]
    names = apart([getattr(bridge, "source", None) or bridge.cfg.model_name, other])
    return side_by_side(dict(zip(names, results, strict=True)))


def side_by_side(results: dict[str, HeadDiversity]) -> HeadDiversityComparison:
    """Several models' `head_diversity` as one result, to be drawn in one figure.

    Args:
        results: model name -> its result; the names become the labels.

    Raises:
        UserError: there is none, or they were not made with the same reading and centring.
    """
    kinds = {(result.reading, result.centred) for result in results.values()}
    if len(kinds) != 1:
        raise UserError("Head diversities are comparable only with the same reading and centring; compute them again.")
    ((reading, centred),) = kinds
    longest = max(result.qk.shape[1] for result in results.values())

    def curves(of: Any) -> Tensor:
        return torch.stack([_padded(of(result), longest) for result in results.values()])

    beside: dict[str, Any] = {}
    if all(result.qk_other is not None for result in results.values()):
        for name in ("qk_other", "ov_other"):
            beside[name] = curves(lambda result, name=name: result.mean(name))
            rank = f"{name}_effective_rank"
            beside[rank] = torch.stack([getattr(result, rank).mean() for result in results.values()])
        beside["other_reading"] = next(iter(results.values())).other_reading
    return HeadDiversityComparison(
        models=tuple(results),
        reading=reading,
        centred=centred,
        qk=curves(lambda result: result.mean("qk")),
        ov=curves(lambda result: result.mean("ov")),
        random=curves(lambda result: result.random),
        qk_effective_rank=torch.stack([result.qk_effective_rank.mean() for result in results.values()]),
        ov_effective_rank=torch.stack([result.ov_effective_rank.mean() for result in results.values()]),
        components=torch.tensor([result.qk.shape[1] for result in results.values()]),
        **beside,
    )


def _padded(curve: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(curve, (0, length - len(curve)), value=1.0)
