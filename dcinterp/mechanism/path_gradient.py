r"""The gradient of a metric averaged along a straight path between two values of some activations.

    x(a) = b + a (x - b);     average = integral_0^1 df/dx(x(a)) da;     gap = f(x) - f(b) - <x - b, average>

Integrated gradients of anything that x is a linear function of are products with this one average: head outputs, edges,
branches and interventions at x share it.

The integral is a Gauss-Legendre sum over panels of [0, 1], one to begin with. What a sum over a panel misses is known
exactly, because the metric's values at both ends of the panel say what it should be. While the panels miss too much
together, the one that misses most is cut in two: points go where the metric bends, and a bend in one place (a norm near
the baseline, say) does not make the whole path dearer.

"Too much" is a share of the metric difference f(x) - f(b). A layer that hardly matters has a difference near zero, of
which a small share is rounding error: it is measured by a tenth of the largest difference among the paths that are
compared (`scale`). Runs begin at the lowest layer that moves (dcinterp.mechanism.stream).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.stream import Hooks as Hooks
from dcinterp.mechanism.stream import Stream, metric_of, replace_rows
from dcinterp.support.wide import wide

Path = Literal["layer", "joint"]
"""One path a layer, or one for all layers together."""

Method = Literal["ig", "gradient"]
"""The gradient averaged along the path, or taken only at its end."""

Metric = Callable[[Tensor], Tensor]
"""From logits [batch, pos, vocabulary] to one number per row, [batch]. One that has `places` and `at_places`, as
`dcinterp.mechanism.objective.AnswerMetric`, is given the logits of these places alone."""

ROUNDED = 4
"""So many times the rounding of the metric a gap may be: more points do not make it smaller."""

WEAK = 0.1
"""Share of the largest metric difference: weaker paths are measured by it."""

FAR = 16
"""Twice the points rarely mend a gap that is so many times too large: the path bends somewhere, and is cut there."""

PARTS = 4
"""Into which a panel is cut."""


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
    """How an integral is computed: `steps` points to start with, and up to `max_steps` until |gap| <= `tolerance`
    times the metric difference, or the rounding of the numbers; `batch_size` points share a pass."""

    steps: int = 32
    max_steps: int = 512
    tolerance: float = 0.01
    batch_size: int = 64


DEEP = 12
"""Layers above which a path starts with half the points: one layer of many bends the metric less."""


def for_depth(rule: Integration | None, layers: int) -> Integration:
    """The rule for the paths of a model with so many layers."""
    rule = rule or Integration()
    return rule if layers <= DEEP else replace(rule, steps=max(1, rule.steps // 2))


Integral = TypeVar("Integral")


def measured_by(difference: Tensor, largest: Tensor | float | None = None) -> Tensor:
    """What the gap of a path is a share of: its metric difference, or a tenth of the largest one if that is more.

    Args:
        difference: f(x) - f(b) of the paths, [path].
        largest: the largest among the paths that are compared, if these are not all of them.
    """
    size = difference.abs()
    return torch.maximum(size, WEAK * torch.as_tensor(size.max() if largest is None else largest).to(size))


def share_missed(gap: Tensor, difference: Tensor) -> Tensor:
    """|gap| of every path, as a share of what it is measured by."""
    return gap.abs() / measured_by(difference).clamp(min=1e-9)


def remedy(method: str) -> str:
    """What to do about a gap, for a warning."""
    if method == "gradient":
        return "use integrated gradients (method 'ig')."
    return "raise max_steps (for a model in half precision: load it in float32)."


def missed(
    gap: Float[Tensor, example * path], difference: Float[Tensor, example * path], tolerance: float
) -> Bool[Tensor, " example"]:
    """Examples whose integral misses more than `tolerance` of what it is measured by on some path.

    Each example's paths are compared with one another.
    """
    size = difference.flatten(1)
    allowed = tolerance * measured_by(size, size.abs().amax(1, keepdim=True))
    return (gap.abs().flatten(1) > allowed).any(1)


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
        found = weighted_sum(*legendre(0.0, 1.0, steps))
        gap = gap_of(found)
        if abs(gap) <= rule.tolerance * abs(difference) or 2 * steps > rule.max_steps:
            return found, gap, steps
        steps *= 2


def legendre(low: float, high: float, steps: int) -> tuple[Tensor, Tensor]:
    """Points and weights of a Gauss-Legendre sum from `low` to `high`, in double precision."""
    points, weights = (torch.from_numpy(x / 2) for x in np.polynomial.legendre.leggauss(steps))
    return low + (high - low) * (points + 0.5), (high - low) * weights


class _Panel(NamedTuple):
    """A part of the path: its ends, the metric there, the sum of the gradients in it, what that misses, its points."""

    low: float
    high: float
    at_low: float
    at_high: float
    total: dict[str, Tensor]
    gap: float
    points: int


@dataclass(frozen=True)
class Move:
    """Activations that move together from `starts` (zero when None) to `ends`, by hook name [1, ...]."""

    ends: Mapping[str, Tensor]
    starts: Mapping[str, Tensor] | None = None

    def at(self, name: str, points: Tensor) -> Tensor:
        """x(a) of one hook, [point, ...]."""
        x = self.ends[name]
        b = torch.zeros_like(x) if self.starts is None else self.starts[name]
        return (b + points.to(x).reshape(-1, *[1] * (x.dim() - 1)) * (x - b)).detach()

    def along(self, total: Mapping[str, Tensor]) -> float:
        """<x - b, total>."""
        by = {name: wide((x if self.starts is None else x - self.starts[name])[0]) for name, x in self.ends.items()}
        return sum(float((by[name] * wide(each)).sum()) for name, each in total.items())


class Job(NamedTuple):
    """Points of one path, [point], and weights of the sums over them that are wanted, [sum, point]."""

    move: Move
    points: Tensor
    weights: Tensor


class _Cuts(NamedTuple):
    """A part of a path to be taken in panels between neighbouring cuts; `known`: the metric at some of them."""

    move: Move
    cuts: tuple[float, ...]
    known: Mapping[float, float]
    steps: int

    @property
    def pairs(self) -> list[tuple[float, float]]:
        return list(zip(self.cuts, self.cuts[1:], strict=False))

    @property
    def unknown(self) -> list[float]:
        return [cut for cut in self.cuts if cut not in self.known]


@dataclass(frozen=True)
class Paths:
    """Runs points of several paths together, each in rows of its own; layers below the lowest that moves are left out.

    metric: the number that answers; batch_size: rows of one forward and backward pass.
    """

    stream: Stream
    metric: Metric
    batch_size: int

    def weighted(self, jobs: Sequence[Job]) -> list[tuple[Tensor, dict[str, Tensor]]]:
        """Of every job, the metric at its points and its sums of gradients, by hook name [sum, ...].

        Gradients of single points are not kept. A point without any weight is there for its value.
        """
        values: list[list[Tensor]] = [[] for _ in jobs]
        total = [
            {name: x.new_zeros(len(job.weights), *x.shape[1:]) for name, x in job.move.ends.items()} for job in jobs
        ]
        every = torch.tensor([number for number, job in enumerate(jobs) for _ in job.points])
        first = torch.tensor([0, *(len(job.points) for job in jobs)]).cumsum(0)
        for rows in torch.arange(len(every)).split(self.batch_size):
            parts = []
            for number in every[rows].unique().tolist():
                own = (every[rows] == number).nonzero()[:, 0]
                job, of_job = jobs[number], rows[own] - first[number]
                moved = {name: job.move.at(name, job.points[of_job]).requires_grad_() for name in job.move.ends}
                parts.append((number, slice(int(own[0]), int(own[-1]) + 1), job.weights[:, of_job], moved))
            hooks = replace_rows([(place, moved) for _, place, _, moved in parts], len(rows))
            with torch.enable_grad():
                value = metric_of(self.stream, self.metric, len(rows), hooks)
                wanted = [tensor for *_, moved in parts for tensor in moved.values()]
                gradients = iter(torch.autograd.grad(value.sum(), wanted))
            for number, place, weights, moved in parts:
                values[number].append(value[place].detach())
                # At a baseline of zero a gradient may be infinite, and nothing times that is no number.
                counts = weights.any(0)
                for name in moved:
                    gradient = next(gradients)[counts]
                    total[number][name] += torch.einsum("sb,b...->s...", weights[:, counts].to(gradient), gradient)
        return [(torch.cat(some), sums) for some, sums in zip(values, total, strict=True)]

    def panels(self, cuts: Sequence[_Cuts]) -> list[list[_Panel]]:
        """The panels of every list of cuts, all in one run."""
        jobs = []
        for each in cuts:
            rules = [legendre(low, high, each.steps) for low, high in each.pairs]
            points = torch.cat([torch.tensor(each.unknown, dtype=torch.float64), *(points for points, _ in rules)])
            weights = torch.block_diag(*(weights[None] for _, weights in rules))
            none = weights.new_zeros(len(rules), len(each.unknown))
            jobs.append(Job(each.move, points, torch.cat([none, weights], 1)))
        made = []
        for each, (values, sums) in zip(cuts, self.weighted(jobs), strict=True):
            at = {**each.known, **dict(zip(each.unknown, values.tolist(), strict=False))}
            panels = []
            for number, (low, high) in enumerate(each.pairs):
                total = {name: every[number] for name, every in sums.items()}
                gap = at[high] - at[low] - each.move.along(total)
                panels.append(_Panel(low, high, at[low], at[high], total, gap, each.steps))
            made.append(panels)
        return made

    def integrals(self, moves: Sequence[Move], rule: Integration, scale: float = 0.0) -> list[PathGradient]:
        """The average gradient of every path; `scale`: the largest metric difference among those that are compared."""
        paths = self.panels([_Cuts(move, (0.0, 1.0), {}, rule.steps) for move in moves])
        while True:
            # One round for all paths at once: few points of many paths are cheaper together.
            wanted = [
                (number, panel, cuts)
                for number, (move, panels) in enumerate(zip(moves, paths, strict=True))
                for panel, cuts in _next_cuts(move, panels, rule, scale)
            ]
            if not wanted:
                return [_integral(move, panels) for move, panels in zip(moves, paths, strict=True)]
            for (number, panel, _), finer in zip(wanted, self.panels([cuts for *_, cuts in wanted]), strict=True):
                at = next(i for i, each in enumerate(paths[number]) if each is panel)
                paths[number][at : at + 1] = finer

    def gradients(self, moves: Sequence[Move]) -> list[PathGradient]:
        """The gradient at the end of every path, in place of the average."""
        points, weights = torch.tensor([0.0, 1.0]), torch.tensor([[0.0, 1.0]])
        made = []
        found = self.weighted([Job(move, points, weights) for move in moves])
        for move, (values, sums) in zip(moves, found, strict=True):
            (start, actual), average = values.tolist(), {name: total[0] for name, total in sums.items()}
            made.append(PathGradient(average, start, actual, actual - start - move.along(average), 1))
        return made


def _next_cuts(move: Move, panels: list[_Panel], rule: Integration, scale: float) -> list[tuple[_Panel, _Cuts]]:
    """The panels that have to be finer, each with its cuts; none if the path is good enough, or has all its points."""
    difference, points = panels[-1].at_high - panels[0].at_low, sum(panel.points for panel in panels)
    allowed = rule.tolerance * max(abs(difference), WEAK * scale)
    # More points do not mend what the numbers themselves cannot tell, as in half precision.
    rounding = max(torch.finfo(end.dtype).eps for end in move.ends.values())
    allowed = max(allowed, ROUNDED * rounding * max(abs(panels[0].at_low), abs(panels[-1].at_high)))
    missed = sum(abs(panel.gap) for panel in panels)
    if missed <= allowed:
        return []
    if len(panels) == 1 and panels[0].points == rule.steps and missed <= FAR * allowed:
        ends = {panels[0].low: panels[0].at_low, panels[0].high: panels[0].at_high}
        return [(panels[0], _Cuts(move, (0.0, 1.0), ends, 2 * points))] if 2 * points <= rule.max_steps else []
    each, finer = max(1, rule.steps // 2), []
    for panel in sorted(panels, key=lambda panel: -abs(panel.gap)):
        points += PARTS * each - panel.points
        cuts = tuple(panel.low + (panel.high - panel.low) * part / PARTS for part in range(PARTS + 1))
        cuts = (panel.low, *cuts[1:-1], panel.high)
        if missed <= allowed / 2 or points > rule.max_steps or len(set(cuts)) <= PARTS:
            break
        missed -= abs(panel.gap)
        finer.append((panel, _Cuts(move, cuts, {panel.low: panel.at_low, panel.high: panel.at_high}, each)))
    return finer


def _integral(move: Move, panels: list[_Panel]) -> PathGradient:
    average = {name: torch.stack([panel.total[name] for panel in panels]).sum(0) for name in move.ends}
    start, actual = panels[0].at_low, panels[-1].at_high
    gap, steps = sum(panel.gap for panel in panels), sum(panel.points for panel in panels)
    return PathGradient(average, start, actual, gap, steps)


def together(paths: int, points: int, batch_size: int) -> int:
    """How many paths share a batch: as many as fit whole, at least one."""
    return max(1, min(paths, batch_size // points))


def cost_line(length: int, *, backward: int, forward: int) -> str:
    """What an attribution takes at least, to be said before it begins: rows of the prompt, and tokens in them."""
    rows = f"at least {backward:,} rows of {length:,} tokens forward and backward"
    return rows + (f", {forward:,} more forward" if forward else "") + f": {(backward + forward) * length:,} tokens"


def largest_difference(
    stream: Stream,
    metric: Metric,
    paths: Sequence[Sequence[str]],
    start_of: Callable[[str], Tensor] | None = None,
    batch_size: int = 64,
) -> float:
    """The largest |f(x) - f(b)| among paths, each given by the hooks that move.

    Args:
        start_of: b of a hook, [1, ...]; zero without.

    Cost: one row of a forward pass for each path and one for x.
    """
    with torch.no_grad():
        actual = float(metric_of(stream, metric, 1, []))
        largest = 0.0
        for first in range(0, len(paths), batch_size):
            some = paths[first : first + batch_size]
            rows_of: dict[str, list[int]] = {}
            for row, names in enumerate(some):
                for name in names:
                    rows_of.setdefault(name, []).append(row)

            def put(tensor: Tensor, hook: Any, name: str, rows_of: dict[str, list[int]] = rows_of) -> Tensor:
                out = tensor.clone()
                out[rows_of[name]] = 0 if start_of is None else start_of(name).to(tensor)
                return out

            values = metric_of(stream, metric, len(some), [(name, partial(put, name=name)) for name in rows_of])
            largest = max(largest, float((actual - values).abs().max()))
    return largest


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

    Cost: steps + 2 rows forward and backward, through the layers from the lowest of `ends` on; twice as many more where
    the gap is too large, or as many again for every cut. `Paths` runs several paths together.
    """
    rule = integration or Integration()
    paths = Paths(Stream(bridge, ids, hooks), metric, rule.batch_size)
    moves = [Move(ends, starts)]
    return (paths.gradients(moves) if method == "gradient" else paths.integrals(moves, rule))[0]
