r"""Where a curve over checkpoints changes: the split into two levels that leaves the least squares.

    k = argmax over splits of  S_k^2 / k + (S - S_k)^2 / (n - k)        S_k: sum of the first k values, S: of all n
    explained = share of the curve's variance that the two levels hold

The interval is that of percentiles: examples are drawn anew, and the split is found in the mean curve of each draw. It
says how well the examples at hand place the change in this one curve; how much it moves from seed to seed is another
question. A curve that rises slowly has a split half way up, so its place depends on where the curve ends, and one that
goes up and down has a split that means little. `explained` is low for the latter; a straight line has 0.75, so only
values well above that speak of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.support.errors import UserError

LEAST = 3
"""Checkpoints of a curve: with two there is but one split."""
CHUNK = 1 << 22
"""Numbers that are held at once while examples are drawn."""


@dataclass(frozen=True)
class ChangePoint:
    """Per curve: the first step of the second level with its interval, and the share of variance it explains.

    rise: the second level minus the first.
    """

    start: Int[Tensor, " curve"]
    low: Int[Tensor, " curve"]
    high: Int[Tensor, " curve"]
    explained: Float[Tensor, " curve"]
    rise: Float[Tensor, " curve"]


def change_points(
    step: Int[Tensor, " checkpoint"],
    curves: Float[Tensor, "checkpoint curve example"],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> ChangePoint:
    """The change of every curve, each the mean over its examples.

    Args:
        step: the steps of the checkpoints.
        curves: the values; of all curves the same examples are drawn together.
        level: probability that the interval should cover.
        resamples: how often the examples are drawn with replacement.
        seed: of the draws.

    Raises:
        UserError: there are fewer than three checkpoints.
    """
    checkpoints, _, n = curves.shape
    if checkpoints < LEAST:
        raise UserError(f"A change needs {LEAST} checkpoints or more, and there are {checkpoints}; keep more of them.")
    mean = curves.double().mean(-1)
    place, explained = split(mean)
    levels = [torch.stack([curve[:at].mean(), curve[at:].mean()]) for curve, at in zip(mean.T, place, strict=True)]
    drawn = torch.randint(n, (resamples, n), generator=torch.Generator().manual_seed(seed))
    shares = torch.zeros(resamples, n).double().scatter_add_(1, drawn, torch.full(drawn.shape, 1 / n).double())
    ends = []
    for some in curves.double().split(max(1, CHUNK // (resamples * checkpoints)), dim=1):
        found, _ = split(torch.einsum("rn,ken->kre", shares, some).flatten(1))
        at = found.reshape(resamples, -1).double()
        tail = (1 - level) / 2
        ends.append((at.quantile(tail, 0, interpolation="lower"), at.quantile(1 - tail, 0, interpolation="higher")))
    low, high = (step[torch.cat(end).long()] for end in zip(*ends, strict=True))
    return ChangePoint(step[place], low, high, explained, torch.stack(levels).diff().flatten())


def split(curves: Float[Tensor, "checkpoint curve"]) -> tuple[Int[Tensor, " curve"], Float[Tensor, " curve"]]:
    """(number of the first checkpoint of the second level, share of variance explained; 0 of a constant curve)."""
    n, centred = len(curves), curves - curves.mean(0)
    sums, size = centred.cumsum(0)[:-1], torch.arange(1, n, dtype=curves.dtype)[:, None]
    gain = sums**2 / size + sums**2 / (n - size)  # the sum of all is zero
    best, place = gain.max(0)
    whole = (centred**2).sum(0)
    return place + 1, torch.where(whole > 0, best / whole.clamp(min=1e-300), 0.0)
