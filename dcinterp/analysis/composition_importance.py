r"""How much the composition of every layer matters for an answer: integrated gradients on what each Compose adds.

    D[l, stage] = hook_out - hook_o_b = o_qp + o_kp + o_qg + o_kg          what composition adds to scores or weights
    score[l, stage, branch, head] = <branch, average gradient of f at hook_out along o_b + a D, a in [0, 1]>

so the path leads from the layer as it would be without its dynamic composition (skip and static map stay) to the layer
as it is, and the branches share the effect f(with D) - f(without D) by how they lie along the gradient. path="layer"
takes every stage of every layer by itself, and later layers are computed from what arrives; path="joint" adds all of
them at once. Source: the DCMHA paper's appendix on interpretation attributes to the composition of each layer by
integrated gradients and reports that lower layers matter more; it does not give the path.

It does not show that a model trained without composition would be worse: the rest of this model expects it.

Identity that the tests assert: the branches of a stage add up to f(z) - f(b), up to the gap; f(b) is the model whose
added branches are zero, by hooks.

    importance = dcinterp.composition_importance(model, "different-in-set n=20")
    importance.by_layer          # [layer, stage], mean over examples
    dcinterp.figures.plot(importance)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dcinterp.analysis.dataset import Examples, questions
from dcinterp.analysis.head_paths import Method, Path, check_choices
from dcinterp.analysis.memory import check_fits
from dcinterp.analysis.objective import Explained, Objective, explained
from dcinterp.analysis.path_gradient import Integration, PathGradient, path_gradient
from dcinterp.analysis.registry import analysis
from dcinterp.analysis.result import Result
from dcinterp.analysis.statistics import bootstrap_interval
from dcinterp.progress import Progress, silent

ADDED = ("o_qp", "o_kp", "o_qg", "o_kg")


@dataclass(frozen=True)
class CompositionImportance(Result):
    """Scores of the composition of every layer, in units of the metric.

    scores [example, layer, stage, branch, head_to], a branch that the model lacks being zero; by_layer, low, high
    [layer, stage]: mean over examples of what a stage adds, with its bootstrap interval; size [layer, stage]: mean of
    its size |.|, since helping here and hurting there would cancel; gap, metric_difference [example, layer, stage],
    the difference f(with) - f(without) being measured (on the joint path all entries of an example repeat one number);
    right [example]: the model gives the target.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "scores": ("example", "layer", "stage", "branch", "head_to"),
        "by_layer": ("layer", "stage"),
        "low": ("layer", "stage"),
        "high": ("layer", "stage"),
        "size": ("layer", "stage"),
        "gap": ("example", "layer", "stage"),
        "metric_difference": ("example", "layer", "stage"),
        "right": ("example",),
    }

    n: int
    stages: tuple[str, ...]
    level: float
    objective: str
    path: str
    method: str
    tolerance: float
    prompts: tuple[str, ...]
    targets: tuple[str, ...]
    foils: tuple[str, ...]
    scores: Float[Tensor, "example layer stage branch head_to"]
    by_layer: Float[Tensor, "layer stage"]
    low: Float[Tensor, "layer stage"]
    high: Float[Tensor, "layer stage"]
    size: Float[Tensor, "layer stage"]
    gap: Float[Tensor, "example layer stage"]
    metric_difference: Float[Tensor, "example layer stage"]
    right: Bool[Tensor, " example"]

    @property
    def by_branch(self) -> Float[Tensor, "layer stage branch"]:
        """Mean over examples of what every branch adds, summed over heads."""
        return self.scores.sum(-1).mean(0)

    def labels(self, axis: str) -> list[str] | None:
        return {"stage": list(self.stages), "branch": list(ADDED), "example": list(self.prompts)}.get(axis)

    def banners(self) -> list[str]:
        said = []
        if wrong := int((~self.right).sum()):
            said.append(f"The model's answer is wrong in {wrong} of {self.n} examples.")
        size = self.metric_difference.abs()
        missed = self.gap.abs() > self.tolerance * torch.maximum(size, 0.1 * size.amax((1, 2), keepdim=True))
        if missed.any():
            said.append(
                f"The scores of {int(missed.flatten(1).any(1).sum())} of {self.n} examples miss more than "
                f"{self.tolerance:.0%} of the metric difference somewhere: raise max_steps."
            )
        if 1 < self.n < 20:
            said.append(f"{self.n} examples are few: the intervals are rough.")
        return said

    def table(self) -> pd.DataFrame:
        """One row a stage of a layer, and what each branch adds."""
        rows = []
        for layer in range(self.by_layer.shape[0]):
            for place, stage in enumerate(self.stages):
                row: dict[str, Any] = {"layer": layer, "stage": stage}
                row |= {name: float(getattr(self, name)[layer, place]) for name in ("by_layer", "low", "high", "size")}
                row |= dict(zip(ADDED, self.by_branch[layer, place].tolist(), strict=True))
                rows.append(row)
        return pd.DataFrame(rows)


@analysis(title="Composition importance by layer", needs_composition=True)
def composition_importance(
    bridge: Any,
    examples: Examples,
    *,
    objective: Objective = "logit",
    method: Method = "ig",
    path: Path = "layer",
    level: float = 0.95,
    seed: int = 0,
    steps: int = 8,
    max_steps: int = 256,
    tolerance: float = 0.01,
    batch_size: int = 32,
    progress: Progress = silent,
) -> CompositionImportance:
    """Attribute answers to what the composition of every layer adds, before and after softmax.

    Args:
        bridge: a bridge over a DCFormer.
        examples: a text such as "same-person n=20 seed=1", or a list of examples of the tasks or of (prompt, target,
            foil); see dcinterp.analysis.dataset. One prompt is a list of one.
        objective: "logit" (difference from the foil where there is one) or "log-probability".
        method: "ig", or "gradient" at the model as it is.
        path: "layer" for each stage of each layer by itself, or "joint".
        level: of the bootstrap intervals over examples.
        seed: of the bootstrap.
        steps, max_steps, tolerance: Gauss-Legendre points to start with, doubled up to `max_steps` until the gap is
            below `tolerance` of the metric difference.
        batch_size: rows of one forward and backward pass; bounds the memory.
        progress: called after each example.

    Cost: per example and stage of a layer, one forward that keeps its branches and steps + 2 rows forward and backward.
    Memory: a row keeps one [head, query, key] gradient of a layer beside the backward pass (of all layers, "joint").

    Raises:
        UserError: the model does not compose its heads, there are no examples, one does not fit, or a choice is
            unknown.
    """
    check_choices(path, method)
    asked, rule = questions(bridge, examples), Integration(steps, max_steps, tolerance, batch_size)
    what = [explained(bridge, q.prompt, q.target, q.foil, objective=objective) for q in asked]
    longest = max(each.ids.shape[1] for each in what)
    layers = bridge.cfg.n_layers * len(bridge.stages) if path == "joint" else 1
    check_fits(bridge, longest, what="Integrating over compositions", rows=min(batch_size, steps), stages=layers)
    made = []
    for done, each in enumerate(what):
        made.append(_importance(bridge, each, path, method, rule))
        progress(done + 1, len(what), f"example {done + 1}")
    scores, gap, difference = (torch.stack(parts) for parts in list(zip(*made, strict=True))[:3])
    total = scores.sum((-1, -2))
    low, high = bootstrap_interval(total, level=level, seed=seed)
    return CompositionImportance(
        n=len(what),
        stages=tuple(bridge.stages),
        level=level,
        objective=objective,
        path=path,
        method=method,
        tolerance=tolerance,
        prompts=tuple(_prompt_text(bridge, each) for each in what),
        targets=tuple(each.target for each in what),
        foils=tuple(each.foil for each in what),
        scores=scores,
        by_layer=total.mean(0),
        low=low.float(),
        high=high.float(),
        size=total.abs().mean(0),
        gap=gap,
        metric_difference=difference,
        right=torch.tensor([row[3] for row in made]),
    )


def _importance(
    bridge: Any, what: Explained, path: Path, method: Method, rule: Integration
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """(scores [layer, stage, branch, head], gap and metric difference [layer, stage], whether the answer is right)."""
    layers, stages, heads = range(bridge.cfg.n_layers), bridge.stages, bridge.cfg.n_heads
    places = [(layer, stage) for layer in layers for stage in stages]
    groups = [places] if path == "joint" else [[place] for place in places]
    scores = torch.zeros(len(layers), len(stages), len(ADDED), heads)
    gap, difference = torch.zeros(2, len(layers), len(stages))
    for group in groups:
        branches = {place: _branches(bridge, what, *place) for place in group}
        ends = {_out(*place): taps["out"] for place, taps in branches.items()}
        starts = {
            _out(*place): taps["out"] - sum(taps[name] for name in ADDED if name in taps)
            for place, taps in branches.items()
        }
        integral: PathGradient = path_gradient(
            bridge, what.ids, what.metric, ends, starts, method=method, integration=rule
        )
        for (layer, stage), taps in branches.items():
            row, column = layer, stages.index(stage)
            average = integral.average[_out(layer, stage)]
            for number, name in enumerate(ADDED):
                if name in taps:
                    scores[row, column, number] = (taps[name][0] * average).sum((-1, -2)).float().cpu()
            gap[row, column] = integral.gap
            difference[row, column] = integral.actual - integral.at_baseline
    with torch.no_grad():
        logits = bridge(what.ids)
    right = logits[0, list(what.positions)].argmax(-1).tolist() == list(what.expected)
    return scores, gap, difference, right


def _out(layer: int, stage: str) -> str:
    return f"blocks.{layer}.attn.{stage}.hook_out"


def _branches(bridge: Any, what: Explained, layer: int, stage: str) -> dict[str, Tensor]:
    """The added branches and the composed matrix of one stage, [1, head, query, key]."""
    prefix = f"blocks.{layer}.attn.{stage}.hook_"
    wanted = [prefix + name for name in ("out", *ADDED) if prefix + name in bridge.hook_dict]
    with torch.no_grad():
        _, cache = bridge.run_with_cache(what.ids, names_filter=wanted)
    return {name.removeprefix(prefix): cache[name].detach() for name in wanted}


def _prompt_text(bridge: Any, what: Explained) -> str:
    return bridge.tokenizer.decode(what.ids[0]) if bridge.tokenizer is not None else str(what.ids[0].tolist())
