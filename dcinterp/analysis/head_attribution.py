r"""How much every head contributes to an answer, by integrated gradients on the heads' outputs.

    score[l, h] = sum over pos, d_head of (z - b) * integral_0^1 df/dz(b + a (z - b)) da

z is `blocks.l.attn.hook_z` (what each head reads, before W_O), b its baseline, and f the logit of the target, or its
difference from the foil's, at one position. All heads of a layer move together along one straight path, layer by
layer; the other layers are computed from what arrives. Source: Sundararajan et al. 2017, applied to head outputs as in
the DCMHA paper (appendix "Interpretation and Visualization").

It does not show why a head matters, nor how heads of different layers share the credit: each layer's scores add up to
that layer's whole effect, so scores of different layers overlap.

Identity that the tests assert: the scores of layer l add up to f(z) - f(b), up to `gap[l]`, which is returned.

    scores = dcinterp.attribute_heads(model, "< Ruth has a violin. ...", "fruit", "animal")
    scores.best                  # (layer, head) of the largest score
    scores.gap                   # what the integral missed, per layer
    dcinterp.figures.plot(scores)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.analysis.prompt import Prompt, Token, position, str_tokens, token_id, token_ids
from dcinterp.analysis.registry import analysis
from dcinterp.analysis.result import Result
from dcinterp.errors import UserError
from dcinterp.progress import Progress, silent

Metric = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class HeadAttribution(Result):
    """Scores of all heads, in units of the metric (logits).

    scores [layer, head]; by_position [layer, head, pos], what each position contributes to them;
    gap [layer] = f(z) - f(b) - sum of the layer's scores; metric_at_baseline [layer] = f(b);
    steps [layer]: points at which the path was evaluated.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "scores": ("layer", "head"),
        "by_position": ("layer", "head", "pos"),
        "gap": ("layer",),
        "metric_at_baseline": ("layer",),
        "steps": ("layer",),
    }

    tokens: tuple[str, ...]
    position: int
    target: str
    foil: str
    method: str
    metric: float
    scores: Float[Tensor, "layer head"]
    by_position: Float[Tensor, "layer head pos"]
    gap: Float[Tensor, " layer"]
    metric_at_baseline: Float[Tensor, " layer"]
    steps: Tensor

    @property
    def best(self) -> tuple[int, int]:
        """(layer, head) of the largest score."""
        layer, head = divmod(int(self.scores.argmax()), self.scores.shape[1])
        return layer, head

    def labels(self, axis: str) -> list[str] | None:
        return list(self.tokens) if axis == "pos" else None

    @property
    def relative_gap(self) -> Float[Tensor, " layer"]:
        """|gap| as a share of the metric difference |f(z) - f(b)| of the layer."""
        return self.gap.abs() / (self.metric - self.metric_at_baseline).abs().clamp(min=1e-9)


@analysis(title="Head attribution")
def attribute_heads(
    bridge: Any,
    prompt: Prompt,
    target: Token,
    foil: Token | None = None,
    *,
    at: int = -1,
    method: Literal["ig", "gradient"] = "ig",
    baseline: Prompt | None = None,
    steps: int = 32,
    max_steps: int = 512,
    tolerance: float = 0.01,
    batch_size: int = 64,
    progress: Progress = silent,
) -> HeadAttribution:
    """Attribute the logit of `target` (minus that of `foil`, if given) to every head of every layer.

    Args:
        bridge: any TransformerLens bridge; its heads need not be composed.
        prompt: text or token ids.
        target: the answer, one token.
        foil: the token it competes with.
        at: the position whose next-token logits are explained.
        method: "ig" integrates from the baseline to z; "gradient" is (z - b) * df/dz at z, the one-step approximation.
        baseline: a counterfactual prompt with as many tokens, whose head outputs are b; b is zero when None.
        steps: Gauss-Legendre points per path to start with.
        max_steps: the points are doubled until the gap is below `tolerance`, but not beyond this.
        tolerance: acceptable |gap| as a share of the metric difference.
        batch_size: points evaluated in one forward and backward pass; bounds the memory.
        progress: called after each layer.

    Cost: 1 + layers forwards and, per layer, steps / batch_size forwards and backwards of a batch of batch_size.

    Raises:
        UserError: prompt, target, foil or position do not fit the model, the baseline has another length, or the
            method is unknown.
    """
    if method not in ("ig", "gradient"):
        raise UserError(f"There is no method {method!r}; choose 'ig' or 'gradient'.")
    ids = token_ids(bridge, prompt)
    at = position(at, ids.shape[1], "Position")
    plus = token_id(bridge, target)
    minus = token_id(bridge, foil) if foil is not None else None
    if minus == plus:
        raise UserError("Target and foil are the same token, so their difference is always zero; choose another foil.")

    def metric(logits: Tensor) -> Tensor:
        value = logits[:, at, plus]
        return value if minus is None else value - logits[:, at, minus]

    layers = range(bridge.cfg.n_layers)
    names = [f"blocks.{layer}.attn.hook_z" for layer in layers]
    with torch.no_grad():
        logits, cache = bridge.run_with_cache(ids, names_filter=names)
        start = _baselines(bridge, ids, baseline, names)
    actual = float(metric(logits))
    rows = []
    for layer, name in zip(layers, names, strict=True):
        run = _path_runner(bridge, ids, name, start[name], cache[name].detach(), metric, batch_size)
        rows.append(
            _gradient(run, actual) if method == "gradient" else _integrate(run, actual, steps, max_steps, tolerance)
        )
        progress(layer + 1, len(layers), f"layer {layer}")
    by_position, gap, at_baseline, used = zip(*rows, strict=True)
    contributions = torch.stack(by_position).float().cpu()
    return HeadAttribution(
        tokens=str_tokens(bridge, ids),
        position=at,
        target=str_tokens(bridge, torch.tensor([[plus]]))[0],
        foil="" if minus is None else str_tokens(bridge, torch.tensor([[minus]]))[0],
        method=method,
        metric=actual,
        scores=contributions.sum(-1),
        by_position=contributions,
        gap=torch.tensor(gap),
        metric_at_baseline=torch.tensor(at_baseline),
        steps=torch.tensor(used),
    )


PathRunner = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From points a in [0, 1] to the metric [point] and (z - b) * gradient summed over d_head [point, head, pos]."""


def _baselines(bridge: Any, ids: Tensor, baseline: Prompt | None, names: list[str]) -> dict[str, Tensor]:
    """b of every layer, [1, pos, head, d_head] or a zero that broadcasts."""
    if baseline is None:
        return {name: torch.zeros(()) for name in names}
    other = token_ids(bridge, baseline)
    if other.shape != ids.shape:
        raise UserError(
            f"The baseline is {other.shape[1]} tokens long and the prompt {ids.shape[1]}; give a counterfactual with "
            "as many tokens."
        )
    return bridge.run_with_cache(other, names_filter=names)[1]


def _path_runner(
    bridge: Any, ids: Tensor, name: str, b: Tensor, z: Tensor, metric: Metric, batch_size: int
) -> PathRunner:
    b = b.to(z)

    def run(points: Tensor) -> tuple[Tensor, Tensor]:
        values, products = [], []
        for some in points.to(z).split(batch_size):
            scaled = (b + some[:, None, None, None] * (z - b)).requires_grad_()
            with torch.enable_grad():
                logits = bridge.run_with_hooks(
                    ids.expand(len(some), -1), fwd_hooks=[(name, lambda _, hook, value=scaled: value)]
                )
                value = metric(logits)
                (gradient,) = torch.autograd.grad(value.sum(), scaled)
            values.append(value.detach())
            products.append((gradient * (z - b)).sum(-1).transpose(1, 2))
        return torch.cat(values), torch.cat(products)

    return run


def _integrate(
    run: PathRunner, actual: float, steps: int, max_steps: int, tolerance: float
) -> tuple[Tensor, float, float, int]:
    """(scores [head, pos], gap, metric at the baseline, steps used), with as many points as the tolerance needs."""
    start = float(run(torch.zeros(1))[0])
    while True:
        # Gauss-Legendre: exact for polynomials up to degree 2 steps - 1, so few points go far on a smooth path.
        points, weights = (torch.from_numpy(x / 2) for x in np.polynomial.legendre.leggauss(steps))
        _, products = run((points + 0.5).float())
        scores = (weights.to(products)[:, None, None] * products).sum(0)
        gap = actual - start - float(scores.sum())
        if abs(gap) <= tolerance * abs(actual - start) or 2 * steps > max_steps:
            return scores, gap, start, steps
        steps *= 2


def _gradient(run: PathRunner, actual: float) -> tuple[Tensor, float, float, int]:
    """The gradient at the actual output alone, in place of its average along the path."""
    start = float(run(torch.zeros(1))[0])
    scores = run(torch.ones(1))[1][0]
    return scores, actual - start - float(scores.sum()), start, 1
