r"""How diverse the heads of a layer are: what share of their QK and OV products a few common directions capture.

    share(n) = sum of the n largest variances of M / sum of all,    M = the QK (or OV) products of a layer's heads
    QK: M_h = W_Q^h W_K^hT,    OV: M_h = W_O^hT W_V^hT                [d_model, d_model], written as acting on rows

Slowly rising curves mean heads that use many directions. Source: the DCMHA paper's head-diversity figure, after
Cordonnier et al. 2020. The paper says that the matrices of a layer are concatenated, but not along which axis;
Cordonnier et al. look at the product of the concatenated projections. All readings are here, the first two together:

    "concatenated":  M = [M_1 ... M_H], the products side by side; heads share the query side (QK), the output side (OV)
    "stacked":       M = [M_1; ...; M_H], on top of each other; heads share the key side (QK), the side they read (OV)
    "product":       M = sum_h M_h, the product of the concatenated projections

It does not show what composition does at run time: these are the heads' own maps, before any mixing; nor rotations of
rotary models, biases or the gains of norms, which stand outside the products. Random weights are the reference: equal
shapes, independent normal entries.

Identity that the tests assert: equal to scikit-learn's PCA of M written out.

    diversity = dcinterp.head_diversity(model)
    diversity.mean("qk")[:16]                    # share of the first 1..16 components, mean over layers
    dcinterp.figures.plot(diversity)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.model.spectra import OTHER_AXIS, READINGS, HeadMatrix, Reading, cumulative, effective_rank, variances
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.progress import Progress, silent

DRAWS = 3
"""Layers of random weights in the reference, unless more or fewer are asked for."""


@dataclass(frozen=True)
class HeadDiversity(Result):
    """Share of the variance that the first 1, 2, ... principal components capture, per layer and for random weights.

    qk, ov [layer, component]; random [component], the mean over `random_draws` layers of random weights (of the shapes
    of QK, which are those of OV); *_effective_rank [layer] counts the components in real use (exp of their entropy).
    qk_other, ov_other and their effective ranks: the same along the other axis, `other_reading`; None for "product",
    which has no other, and in results of version 0.1.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "qk": ("layer", "component"),
        "ov": ("layer", "component"),
        "random": ("component",),
        "qk_effective_rank": ("layer",),
        "ov_effective_rank": ("layer",),
        "qk_other": ("layer", "component"),
        "ov_other": ("layer", "component"),
        "qk_other_effective_rank": ("layer",),
        "ov_other_effective_rank": ("layer",),
    }

    reading: Reading
    centred: bool
    random_draws: int
    random_effective_rank: float
    qk: Float[Tensor, "layer component"]
    ov: Float[Tensor, "layer component"]
    random: Float[Tensor, " component"]
    qk_effective_rank: Float[Tensor, " layer"]
    ov_effective_rank: Float[Tensor, " layer"]
    other_reading: Reading | None = None
    qk_other: Float[Tensor, "layer component"] | None = None
    ov_other: Float[Tensor, "layer component"] | None = None
    qk_other_effective_rank: Float[Tensor, " layer"] | None = None
    ov_other_effective_rank: Float[Tensor, " layer"] | None = None

    def mean(self, product: Literal["qk", "ov", "qk_other", "ov_other"]) -> Float[Tensor, " component"]:
        """The curve of the paper: the mean over layers."""
        return getattr(self, product).mean(0)

    def components_for(self, product: Literal["qk", "ov", "qk_other", "ov_other"], share: float = 0.9) -> int:
        """How many components the mean over layers needs to capture `share` of the variance."""
        return components_for(self.mean(product), share)

    def warnings(self) -> list[str]:
        """The layers whose products do not vary at all."""
        sentences = []
        for name, rank in (("QK", self.qk_effective_rank), ("OV", self.ov_effective_rank)):
            if still := (rank == 0).nonzero().flatten().tolist():
                sentences.append(
                    f"The {name} products of layer {', '.join(map(str, still))} do not vary (weights are zero): they "
                    "use no direction, and their share of the variance is 1 from the first component on."
                )
        return sentences


@analysis(
    title="Head diversity",
    question="How many directions do the heads of a layer use?",
    guide="analyses/head-diversity.md",
    example={},
)
def head_diversity(
    bridge: Bridge,
    *,
    reading: Reading = "concatenated",
    centre: bool = True,
    random_draws: int = DRAWS,
    seed: int = 0,
    progress: Progress = silent,
) -> HeadDiversity:
    """Spectra of the heads' QK and OV products, layer by layer.

    Args:
        bridge: any bridge; heads that share keys and values (grouped-query attention) each count with the shared ones.
        reading: "concatenated" (the products side by side), "stacked" (on top of each other) or "product" (the product
            of the concatenation). With either of the first two the other one is measured as well.
        centre: take the mean row off first, as principal component analysis does.
        random_draws: layers of random weights in the reference.
        seed: seed of the random weights.
        progress: called after each layer.

    Cost: no forward pass; per layer, heads QR decompositions and four eigendecompositions of size
    min(d_model, head * d_head), of d_model for "stacked". Memory: a few matrices [d_model, head * d_head] and one
    [head, d_model, d_model] in float64.

    Raises:
        UserError: the reading is unknown, or `random_draws` is less than one.
    """
    if reading not in READINGS:
        raise UserError(f"There is no reading {reading!r} of head diversity; {nearest(reading, READINGS)}")
    if random_draws < 1:
        raise UserError(f"The reference needs at least one draw of random weights, not {random_draws}.")
    layers = range(bridge.cfg.n_layers)
    other = OTHER_AXIS.get(reading)
    found: dict[str, list[Tensor]] = {"qk": [], "ov": [], "random": []}
    along: dict[str, list[Tensor]] = {"qk": [], "ov": []}
    for layer in layers:
        for name, (left, right) in head_factors(bridge, layer).items():
            found[name].append(variances(left, right, reading, centre=centre))
            if other is not None:
                along[name].append(variances(left, right, other, centre=centre))
        progress(layer + 1, len(layers) + random_draws, f"layer {layer}")
    shapes = [side.shape for side in head_factors(bridge, 0, expand=False)["qk"]]
    generator = torch.Generator().manual_seed(seed)
    for draw in range(random_draws):
        left, right = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        found["random"].append(variances(left, _shared_out(right, len(left)), reading, centre=centre))
        progress(len(layers) + draw + 1, len(layers) + random_draws, "random weights")
    spectra = {name: torch.stack(rows) for name, rows in found.items()}
    beside: dict[str, Any] = {}
    for name, rows in along.items():
        if rows:
            beside[f"{name}_other"] = cumulative(torch.stack(rows)).float()
            beside[f"{name}_other_effective_rank"] = effective_rank(torch.stack(rows)).float()
    return HeadDiversity(
        reading=reading,
        centred=centre,
        random_draws=random_draws,
        random_effective_rank=float(effective_rank(spectra["random"]).mean()),
        qk=cumulative(spectra["qk"]).float(),
        ov=cumulative(spectra["ov"]).float(),
        random=cumulative(spectra["random"]).mean(0).float(),
        qk_effective_rank=effective_rank(spectra["qk"]).float(),
        ov_effective_rank=effective_rank(spectra["ov"]).float(),
        other_reading=other,
        **beside,
    )


def components_for(curve: Float[Tensor, " component"], share: float) -> int:
    """How many components a curve of shares needs to reach `share`.

    Raises:
        UserError: `share` is not above 0 and at most 1.
    """
    if not 0 < share <= 1:
        raise UserError(f"share must be above 0 and at most 1, as in 0.9; it is {share:g}.")
    return int((curve < share).sum()) + 1


def head_factors(bridge: Bridge, layer: int, *, expand: bool = True) -> dict[str, tuple[HeadMatrix, HeadMatrix]]:
    """(left, right) of QK and OV, each [head, d_model, d_head]: M_h = left_h right_h^T.

    expand: whether shared keys and values are repeated for the heads that share them.
    """
    attention = bridge.blocks[layer].attn
    q, k, v, o = (getattr(attention, f"W_{name}").detach().cpu() for name in "QKVO")
    if expand:
        k, v = _shared_out(k, len(q)), _shared_out(v, len(q))
    return {"qk": (q, k), "ov": (o.transpose(1, 2), v)}


def _shared_out(shared: Tensor, heads: int) -> Tensor:
    """Keys or values of groups of heads, once for every head."""
    return shared.repeat_interleave(heads // len(shared), dim=0)
