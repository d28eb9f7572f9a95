r"""The banner of scores whose size is not that of the effects: what adds up to a whole is not what a removal costs.

    attributed[u] / measured[u]    of the strongest units u; said where it is above FACTOR or below 1 / FACTOR

Integrated gradients share out f(z) - f(b), what a whole layer does, from where the layer does nothing to where it is; a
removal of one unit starts from the intact layer. Where the layer's work saturates (a norm behind it, a softmax, a copy
of the unit) most of that path is steep and its end is flat, and scores come out many times as large as effects. The
gradient at the end is the slope of small changes, and misses what bends before the unit is gone.

    magnitude_warnings(["head 1.2"], [5.72], [0.2], method="ig")      # one sentence, or none
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

FACTOR = 3.0
"""A score and an effect that differ by more are not the same number measured twice."""

STRONG = 0.25
"""The strongest units: at least this share of the largest score, or of the largest effect."""

REASONS = {
    "ig": "integrated gradients share out what the whole layer does, from nothing to all of it",
    "gradient": "a gradient is the slope of small changes, and a removal is a large one",
}


def magnitude_warnings(
    names: Sequence[str], attributed: Any, measured: Any, *, method: str, unit: str = "logits"
) -> list[str]:
    """One sentence on the strongest unit whose score and effect differ most in size; none where all are alike.

    Units whose score and effect differ in sign are left to the banner that says so.

    Args:
        names: of the units, such as "head 1.2".
        attributed: their scores; measured: the effects of removing each alone. Any shape with as many entries.
        method: "ig" or "gradient".
        unit: of both numbers.
    """
    p, m = (torch.as_tensor(each).detach().double().flatten() for each in (attributed, measured))
    if not len(p):
        return []
    strong = ((p.abs() >= STRONG * p.abs().max()) | (m.abs() >= STRONG * m.abs().max())) & (p * m >= 0)
    larger, smaller = torch.maximum(p.abs(), m.abs()), torch.minimum(p.abs(), m.abs())
    ratio = torch.where(strong & (larger > 0), larger / smaller.clamp(min=1e-9 * float(larger.max()) + 1e-12), 0.0)
    apart = int((ratio > FACTOR).sum())
    if not apart:
        return []
    worst = int(ratio.argmax())
    return [
        f"Attribution says {float(p[worst]):.2f} {unit} for {names[worst]}, taking it out alone costs "
        f"{float(m[worst]):.2f}; {apart} of the {int(strong.sum())} strongest differ by more than {FACTOR:.0f} times: "
        f"{REASONS[method]}. For 'did it matter?' believe the ablation."
    ]
