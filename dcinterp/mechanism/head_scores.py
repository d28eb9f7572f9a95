r"""Integrated gradients on the outputs of all heads of one prompt: the arithmetic below the head attributions.

    score[l, h, pos] = <z - b, average gradient along the path>[l, h, pos]

and, beside every score, the intervention it predicts: the metric's change when that head alone is set to b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.dataset import equal_lengths
from dcinterp.mechanism.objective import Explanation
from dcinterp.mechanism.path_gradient import Integration, Method, Path, path_gradient
from dcinterp.shapes import TokenIds
from dcinterp.support.progress import Progress, silent


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
            total[name] = total.get(name, 0) + z.double().sum((0, 1))
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
        progress: called after each layer.
    """
    rule = integration or Integration()
    logits, z = outputs(bridge, explanation.ids)
    b = {name: (starts[name] if starts else torch.zeros(())).to(x).expand_as(x) for name, x in z.items()}
    groups = [list(z)] if path == "joint" else [[name] for name in z]
    scores, integrals = [], []
    for number, names in enumerate(groups):
        integral = path_gradient(
            bridge,
            explanation.ids,
            explanation.metric,
            {name: z[name] for name in names},
            {name: b[name] for name in names},
            method=method,
            integration=rule,
        )
        scores += [((z[name] - b[name])[0] * integral.average[name]).sum(-1).T for name in names]
        integrals += [integral] * len(names)
        progress(number + 1, len(groups), f"layer {number}" if path == "layer" else "all layers")
    answer = logits[0, list(explanation.positions)].argmax(-1).tolist()
    return HeadScores(
        metric=float(explanation.metric(logits)[0]),
        by_position=torch.stack(scores).float().cpu(),
        ablation=_ablations(bridge, explanation, b, rule.batch_size),
        gap=torch.tensor([each.gap for each in integrals]),
        at_baseline=torch.tensor([each.at_baseline for each in integrals]),
        steps=torch.tensor([each.steps for each in integrals]),
        answer=explanation.answer(bridge, logits),
        right=answer == list(explanation.expected),
    )


def _ablations(
    bridge: Bridge, explanation: Explanation, b: Mapping[str, Tensor], batch_size: int
) -> Float[Tensor, "layer head"]:
    """f(z) - f(one head at its baseline), every head in its own row; later layers are computed from what arrives."""
    rows: list[Tensor] = []
    for name, baseline in b.items():
        changed = []
        # The first row is untouched: rounding of the same batch size cancels.
        for heads in torch.arange(-1, baseline.shape[2]).split(max(2, batch_size)):

            def put(z: Tensor, hook: Any, heads: Tensor = heads, baseline: Tensor = baseline) -> Tensor:
                out = z.clone()
                for row, head in enumerate(heads.tolist()):
                    if head >= 0:
                        out[row, :, head] = baseline[0, :, head]
                return out

            with torch.no_grad():
                logits = bridge.run_with_hooks(explanation.ids.expand(len(heads), -1), fwd_hooks=[(name, put)])
                changed.append(explanation.metric(logits))
        values = torch.cat(changed)
        rows.append(values[0] - values[1:])
    return torch.stack(rows).float().cpu()
