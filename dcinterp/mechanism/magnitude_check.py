r"""The warning that scores differ in size from measured effects: a share of a whole is not the effect of a removal.

    attributed[u] / measured[u]    of the strongest units u; a warning if it is above FACTOR or below 1 / FACTOR

Integrated gradients divide f(z) - f(b), the effect of a whole layer, along the path from a layer that does nothing to
the layer as it is; a removal of one unit starts from the intact layer. If the effect of the layer saturates (a norm
behind it, a softmax, a copy of the unit), most of that path is steep and its end is flat, and scores come out many
times as large as effects. The gradient at the end is the slope of small changes, and misses the curvature on the way to
a removal.

    magnitude_warnings(["head 1.2"], [5.72], [0.2], method="ig")      # one sentence, or none
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

FACTOR = 3.0
"""A score and an effect that differ by a larger factor are not estimates of the same number."""

STRONG = 0.25
"""The strongest units: at least this share of the largest score, or of the largest effect."""

REASONS = {
    "ig": "integrated gradients divide the effect of the whole layer among its units",
    "ig-counterfactual": "integrated gradients divide the difference between two prompts among the units",
    "gradient": "a gradient describes small changes, and a removal is a large one",
    "halfway": "the gradient is that of a layer at half its size, which the removal of one unit does not reach",
    "recomputed": "behind the softmax a gradient describes small changes, and a removal is a large one",
    "joint": "on the joint path no head answers another, and behind an ablated head those of later layers do",
    "relp": "the linearised model shares out the whole answer, and a removal takes one unit from the intact model",
}


def magnitude_warnings(
    names: Sequence[str], attributed: Any, measured: Any, *, method: str, unit: str = "logits"
) -> list[str]:
    """One sentence on the strongest unit whose score and effect differ most in size; none if all are similar.

    Units whose score and effect differ in sign have a warning of their own.

    Args:
        names: of the units, such as "head 1.2".
        attributed: their scores; measured: the effects of removing each alone. Any shape with as many entries.
        method: a rule, of `REASONS`.
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
    worst, reason = int(ratio.argmax()), REASONS.get(method, REASONS["recomputed"])
    return [
        f"Attribution gives {names[worst]} {float(p[worst]):.2f} {unit}, but its measured effect is "
        f"{float(m[worst]):.2f}; {apart} of the {int(strong.sum())} strongest scores differ from the effect by more "
        f"than a factor of {FACTOR:.0f}: {reason}. To see what matters, trust the ablation."
    ]
