r"""The gradient of a metric averaged along a straight path between two values of some activations.

    x(a) = b + a (x - b);     average = integral_0^1 df/dx(x(a)) da;     gap = f(x) - f(b) - <x - b, average>

Integrated gradients of anything that x is a linear function of are products with this one average: head outputs, edges,
branches and interventions at x share it. The integral is a Gauss-Legendre sum whose points are doubled until the gap is
small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.support.errors import UserError

Path = Literal["layer", "joint"]
"""One path a layer, or one for all layers together."""

Method = Literal["ig", "gradient"]
"""The gradient averaged along the path, or taken only at its end."""

Metric = Callable[[Tensor], Tensor]
"""From logits [batch, pos, vocabulary] to one number per row, [batch]."""

Hooks = Sequence[tuple[str, Callable[..., Any]]]


@dataclass(frozen=True)
class PathGradient:
    """average [as the activation], by hook; `at_baseline` = f(b), `actual` = f(x); `steps` points were used."""

    average: dict[str, Tensor]
    at_baseline: float
    actual: float
    gap: float
    steps: int


@dataclass(frozen=True)
class Integration:
    """How an integral is computed: `steps` points to start with, doubled up to `max_steps` until |gap| <= `tolerance`
    times the metric difference; `batch_size` points share a forward and backward pass."""

    steps: int = 32
    max_steps: int = 512
    tolerance: float = 0.01
    batch_size: int = 64


Integral = TypeVar("Integral")


def check_choices(path: str, method: str) -> None:
    """Refuse unknown names; UserError that lists the known ones."""
    if method not in ("ig", "gradient"):
        raise UserError(f"There is no method {method!r}; choose 'ig' or 'gradient'.")
    if path not in ("layer", "joint"):
        raise UserError(f"There is no path {path!r}; choose 'layer' or 'joint'.")


def integrate(
    weighted_sum: Callable[[Tensor, Tensor], Integral],
    gap_of: Callable[[Integral], float],
    difference: float,
    rule: Integration,
) -> tuple[Integral, float, int]:
    """An integral from 0 to 1 as a Gauss-Legendre sum whose points are doubled until it is good enough.

    Args:
        weighted_sum: of the integrand, from points and their weights.
        gap_of: what such a sum misses of `difference`, the metric's.
        difference, rule: the gap is small when it is below `rule.tolerance` of the difference.

    Returns:
        (integral, its gap, points used).
    """
    steps = rule.steps
    while True:
        # Exact for polynomials up to degree 2 steps - 1, so few points go far on a smooth path.
        points, weights = (torch.from_numpy(x / 2) for x in np.polynomial.legendre.leggauss(steps))
        found = weighted_sum(points + 0.5, weights)
        gap = gap_of(found)
        if abs(gap) <= rule.tolerance * abs(difference) or 2 * steps > rule.max_steps:
            return found, gap, steps
        steps *= 2


def path_gradient(
    bridge: Bridge,
    ids: Tensor,
    metric: Metric,
    ends: Mapping[str, Tensor],
    starts: Mapping[str, Tensor] | None = None,
    *,
    method: str = "ig",
    hooks: Hooks = (),
    integration: Integration | None = None,
) -> PathGradient:
    """Average the metric's gradient along the path of the named activations, which move together.

    Args:
        bridge: any bridge.
        ids: the prompt, [1, pos].
        metric: what is explained.
        ends: x by hook name, [1, ...].
        starts: b by hook name, [1, ...]; zero when None.
        method: "ig" averages along the path; "gradient" takes the gradient at x alone.
        hooks: further forward hooks that stay on, such as frozen weights; made for any batch size.
        integration: points, tolerance and memory bound.

    Cost: 2 + steps / batch_size forwards and backwards of batch_size rows, and as much again for every doubling.
    """
    rule = integration or Integration()
    starts = starts or {name: torch.zeros_like(x) for name, x in ends.items()}

    def run(points: Tensor, weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return _weighted(bridge, ids, metric, ends, starts, hooks, points, weights, rule.batch_size)

    one = torch.ones(1, dtype=torch.float64)
    values, at_end = run(one, one)
    actual = float(values[0])
    start = float(run(0 * one, one)[0][0])

    def gap_of(average: dict[str, Tensor]) -> float:
        moved = {name: (ends[name] - starts[name])[0].double() for name in average}
        return actual - start - sum(float((moved[name] * g.double()).sum()) for name, g in average.items())

    if method == "gradient":
        return PathGradient(at_end, start, actual, gap_of(at_end), 1)
    average, gap, steps = integrate(lambda points, weights: run(points, weights)[1], gap_of, actual - start, rule)
    return PathGradient(average, start, actual, gap, steps)


def _weighted(
    bridge: Bridge,
    ids: Tensor,
    metric: Metric,
    ends: Mapping[str, Tensor],
    starts: Mapping[str, Tensor],
    hooks: Hooks,
    points: Tensor,
    weights: Tensor,
    batch_size: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The metric at every point, and the weighted sum of its gradients; gradients of single points are not kept."""
    values: list[Tensor] = []
    total = {name: torch.zeros_like(x[0]) for name, x in ends.items()}
    for some, weight in zip(points.split(batch_size), weights.split(batch_size), strict=True):
        moved = {name: _at(some, starts[name], x).requires_grad_() for name, x in ends.items()}
        replace = [(name, lambda _, hook, value=value: value) for name, value in moved.items()]
        with torch.enable_grad():
            logits = bridge.run_with_hooks(ids.expand(len(some), -1), fwd_hooks=[*hooks, *replace])
            value = metric(logits)
            gradients = torch.autograd.grad(value.sum(), list(moved.values()))
        values.append(value.detach())
        for name, gradient in zip(moved, gradients, strict=True):
            total[name] += torch.einsum("b,b...->...", weight.to(gradient), gradient)
    return torch.cat(values), total


def _at(points: Tensor, b: Tensor, x: Tensor) -> Tensor:
    a = points.to(x).reshape(-1, *[1] * (x.dim() - 1))
    return (b + a * (x - b)).detach()
