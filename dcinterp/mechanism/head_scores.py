r"""Integrated gradients on the outputs of all heads of one prompt: the arithmetic below the head attributions.

    score[l, h, pos] = <z - b, average gradient along the path>[l, h, pos]

and, beside every score, the intervention it predicts: the metric's change when that head alone is set to b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.dataset import equal_lengths
from dcinterp.mechanism.objective import Explanation
from dcinterp.mechanism.path_gradient import (
    Integration,
    Method,
    Move,
    Path,
    PathGradient,
    Paths,
    cost_line,
    for_depth,
    largest_difference,
    together,
)
from dcinterp.mechanism.stream import Stream, metric_of
from dcinterp.shapes import TokenIds
from dcinterp.support.progress import Progress, silent
from dcinterp.support.wide import wide


@dataclass(frozen=True)
class HeadScores:
    """Scores of one prompt, on the CPU; the fields are those of `HeadAttribution`."""

    metric: float
    by_position: Float[Tensor, "layer head pos"]
    ablation: Float[Tensor, "layer head"]
    gap: Float[Tensor, " layer"]
    at_baseline: Float[Tensor, " layer"]
    steps: Int[Tensor, " layer"]
    answer: str
    right: bool


def output_hooks(bridge: Bridge) -> list[str]:
    """The hook of every layer's head outputs, what they have read before W_O."""
    return [f"blocks.{layer}.attn.hook_z" for layer in range(bridge.cfg.n_layers)]


def outputs(bridge: Bridge, ids: TokenIds) -> tuple[Tensor, dict[str, Tensor]]:
    """(logits, head outputs [1, pos, head, d_head] by hook) of a prompt."""
    names = output_hooks(bridge)
    with torch.no_grad():
        logits, cache = bridge.run_with_cache(ids, names_filter=names)
    return logits.detach(), {name: cache[name].detach() for name in names}


def mean_outputs(bridge: Bridge, reference: Sequence[TokenIds], progress: Progress = silent) -> dict[str, Tensor]:
    """The mean head output over all positions of a reference set, [1, 1, head, d_head] by hook."""
    total: dict[str, Tensor] = {}
    count = 0
    done = 0
    for some in equal_lengths(reference):
        ids = torch.cat([reference[i] for i in some])
        for name, z in outputs(bridge, ids)[1].items():
            total[name] = total.get(name, 0) + wide(z).sum((0, 1))
        count, done = count + ids.numel(), done + len(some)
        progress(done, len(reference), "mean of the reference set")
    return {name: (z / count)[None, None] for name, z in total.items()}


def head_scores(
    bridge: Bridge,
    explanation: Explanation,
    starts: Mapping[str, Tensor] | None,
    *,
    path: Path = "layer",
    method: Method = "ig",
    integration: Integration | None = None,
    progress: Progress = silent,
) -> HeadScores:
    """Attribute the metric of an explanation to all heads of a prompt.

    Args:
        bridge: any bridge.
        explanation: prompt and metric.
        starts: the baseline's head outputs by hook, which broadcast to [1, pos, head, d_head]; zero when None.
        path: "layer" for a path per layer, "joint" for one path of all layers.
        method: "ig" or "gradient".
        integration: points, tolerance and memory bound.
        progress: called with the cost before the work, and after each layer.
    """
    rule = for_depth(integration, bridge.cfg.n_layers)
    stream = Stream(bridge, explanation.ids)
    logits, z = outputs(bridge, explanation.ids)
    b = {name: (starts[name] if starts else torch.zeros(())).to(x).expand_as(x) for name, x in z.items()}
    groups = [list(z)] if path == "joint" else [[name] for name in z]
    points = rule.steps if method == "ig" else 0
    progress(0, len(groups), _cost(bridge, explanation, len(groups), points))
    names = list(z)
    start_of = b.__getitem__ if starts else None
    paths = Paths(stream, explanation.metric, rule.batch_size)
    scale = largest_difference(stream, explanation.metric, groups, start_of, rule.batch_size) if points else 0.0
    integrals: list[PathGradient] = []
    size = together(len(groups), (points or 0) + 2, rule.batch_size)
    for first in range(0, len(groups), size):
        moves = [Move({n: z[n] for n in some}, {n: b[n] for n in some}) for some in groups[first : first + size]]
        integrals += paths.integrals(moves, rule, scale) if points else paths.gradients(moves)
        progress(len(integrals), len(groups), f"layer {len(integrals) - 1}" if path == "layer" else "all layers")
    integrals = integrals * len(names) if path == "joint" else integrals
    scores = [
        ((z[name] - b[name])[0] * integral.average[name]).sum(-1).T
        for name, integral in zip(names, integrals, strict=True)
    ]
    return HeadScores(
        metric=float(explanation.metric(logits)[0]),
        by_position=torch.stack(scores).float().cpu(),
        ablation=_ablations(stream, explanation, b, rule.batch_size),
        gap=torch.tensor([each.gap for each in integrals]),
        at_baseline=torch.tensor([each.at_baseline for each in integrals]),
        steps=torch.tensor([each.steps for each in integrals]),
        answer=explanation.answer(bridge, logits),
        right=explanation.is_right(logits),
    )


def _cost(bridge: Bridge, explanation: Explanation, paths: int, points: int) -> str:
    """What the work takes at least, in rows of the prompt; gaps that are too large add to it."""
    layers, heads, length = bridge.cfg.n_layers, bridge.cfg.n_heads, explanation.ids.shape[1]
    return cost_line(length, backward=paths * (points + 2), forward=paths * bool(points) + layers * heads)


def _ablations(
    stream: Stream, explanation: Explanation, b: Mapping[str, Tensor], batch_size: int
) -> Float[Tensor, "layer head"]:
    """f(z) - f(one head at its baseline), every head in its own row; later layers are computed from what arrives."""
    pairs = [(name, head) for name, baseline in b.items() for head in range(baseline.shape[2])]
    effects: list[Tensor] = []
    size = max(1, batch_size - 1)
    for first in range(0, len(pairs), size):
        some = pairs[first : first + size]

        def put(z: Tensor, hook: Any, name: str, some: list[tuple[str, int]] = some) -> Tensor:
            out = z.clone()
            # The first row is untouched: rounding of the same batch size cancels.
            for row, (where, head) in enumerate(some, 1):
                if where == name:
                    out[row, :, head] = b[name][0, :, head]
            return out

        hooks = [(name, partial(put, name=name)) for name in dict.fromkeys(where for where, _ in some)]
        with torch.no_grad():
            values = metric_of(stream, explanation.metric, len(some) + 1, hooks)
        effects.append(values[0] - values[1:])
    return torch.cat(effects).float().cpu().view(len(b), -1)
