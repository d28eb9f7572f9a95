r"""A model's accuracy on the tasks without a part of its composition: the causal question, answered by removal.

    change(part, pattern) = accuracy with the part's branches at zero - accuracy of the model as it is, on the same rows

A part is one branch in all layers ("post.kp"), in one layer ("1.post.kp"), a whole stage ("pre", "2.post") or "all":
every term that composition adds; the skip stays, so that "all" leaves plain attention with the trained weights. A
branch at zero is a state that the model never trained in; as the control of size, kind="rotate" leaves every branch as
large as it is and hands each head the term of its neighbour.

Source: zero ablation, as in Wang et al. 2022 (IOI); the rotated control is ours.

It does not show how a part acts, nor that a model trained without it could not do as well. If the whole model is only
as good as guessing a fact (`guess`), a removal can affect the relation, but not the choice of a fact.

Identity that the tests assert: without "all", the accuracy is that of the same weights in a model that does not
compose.

    ablation = dcinterp.branch_ablation(model, tasks="different-in-set", rows=4)
    ablation.to_dataframe()                      # accuracy and change with clustered 95 % intervals
    dcinterp.figures.plot(ablation)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.branches import ADDED as ADDED_BRANCHES
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count

FEW = 10
"""With fewer clusters an interval is wide, and its coverage was not simulated below 6."""

INTACT, ALL, WHOLE = "intact", "all", "all tasks"


@dataclass(frozen=True)
class BranchAblation(Result):
    """Accuracy [part, pattern] with a part removed, and its change against the first part, "intact".

    Intervals (low, high; change_low, change_high) are 95 %, by clusters of rows that share facts, and those of changes
    are of pairs: row by row against the intact model (see synthetic_tasks.intervals). answers, clusters [pattern]: how
    many are scored, and in how many clusters; guess [pattern]: accuracy of the right relation applied to a random fact.
    Intervals are not corrected for the number of parts and patterns: of 20 without any effect, one excludes zero.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        **{name: ("part", "pattern") for name in ("accuracy", "low", "high", "change", "change_low", "change_high")},
        "answers": ("pattern",),
        "clusters": ("pattern",),
        "guess": ("pattern",),
    }

    parts: tuple[str, ...]
    patterns: tuple[str, ...]
    kind: str
    rows: int
    examples: int
    seed: int
    accuracy: Float[Tensor, "part pattern"]
    low: Float[Tensor, "part pattern"]
    high: Float[Tensor, "part pattern"]
    change: Float[Tensor, "part pattern"]
    change_low: Float[Tensor, "part pattern"]
    change_high: Float[Tensor, "part pattern"]
    answers: Int[Tensor, " pattern"]
    clusters: Int[Tensor, " pattern"]
    guess: Float[Tensor, " pattern"]

    def labels(self, axis: str) -> list[str] | None:
        return {"part": list(self.parts), "pattern": list(self.patterns)}.get(axis)

    def certain(self, part: str, pattern: str = WHOLE) -> bool:
        """Whether the interval of a change excludes zero."""
        p, q = self.parts.index(part), self.patterns.index(pattern)
        return bool(self.change_low[p, q] > 0) or bool(self.change_high[p, q] < 0)  # NaN, no interval, excludes nothing

    @property
    def guessed(self) -> tuple[str, ...]:
        """Patterns in which the interval of the intact model holds the level of guessing, or lies below it."""
        above = ~(self.low[self.parts.index(INTACT)] <= self.guess)
        return tuple(name for name, better in zip(self.patterns, above.tolist(), strict=True) if not better)

    def warnings(self) -> list[str]:
        """The patterns in which the model only guesses a fact, and intervals that rest on too few rows."""
        sentences = []
        if self.guessed:
            sentences.append(
                "The intact model does no better than a random fact with the right relation on "
                f"{', '.join(self.guessed)}: there, a removal cannot show how a fact is chosen."
            )
        if int(self.clusters.min()) < FEW:
            sentences.append(
                f"Some intervals rest on only {int(self.clusters.min())} independent rows (with one there is none): "
                "give more `rows` or more tasks."
            )
        return sentences


@analysis(
    title="Accuracy without a part of the composition",
    needs_composition=True,
    ignore=("batch_size",),
    question="What is left of the accuracy without a part of the composition?",
    guide="analyses/branch-ablation.md",
    example={"tasks": "56", "rows": "1"},
)
def branch_ablation(
    bridge: Bridge,
    *,
    tasks: str = "",
    parts: Sequence[str] | None = None,
    kind: Literal["zero", "rotate"] = "zero",
    rows: Count = 2,
    examples: Count = 8,
    seed: int = 1,
    batch_size: Count = 4,
    resamples: Count = 1000,
    progress: Progress = silent,
) -> BranchAblation:
    """Accuracy on freshly generated held-out rows with each part of the composition removed in turn.

    Args:
        bridge: a bridge over a DCFormer with the tokenizer of the tasks (or one that knows their words).
        tasks: which, as `dcinterp tasks evaluate --tasks` takes them ("same-person,56"); all 74 by default.
        parts: what to remove: "post.kp", "1.post.kp", "pre", "2.post" or "all"; every stage, every branch of each and
            "all" by default.
        kind: "zero" removes the branches, "rotate" gives every head the term of the head before it.
        rows: rows per task, of `examples` examples, of which the third to the last are scored.
        examples: examples in a row.
        seed: seed of the rows.
        batch_size: rows per forward pass.
        resamples: of no effect: intervals are computed, where version 0.1 drew them.
        progress: called as rows are done.

    Cost: (parts + 1) forward passes of every row, which keep to the tapped path: 888 rows with rows=1 and all parts.

    Raises:
        UserError: the model is not composed, a part or task does not exist, or a word is unknown to the tokenizer.
    """
    from synthetic_tasks import evaluate, generate
    from synthetic_tasks.baselines import average
    from synthetic_tasks.selection import chosen

    if kind not in CHANGES:
        raise UserError(f"There is no kind {kind!r} of removal; {nearest(kind, CHANGES)}")
    named = {part: _hooks(bridge, part) for part in (default_parts(bridge) if parts is None else parts)}
    try:
        drawn = [
            row for task in chosen(tasks) for row in generate(task, rows, seed, examples=examples, split="held-out")
        ]
    except ValueError as error:
        raise UserError(str(error)) from error
    conditions = {INTACT: [], **named}
    frames = {}
    for number, (part, names) in enumerate(conditions.items()):

        def report(done: int, total: int, message: str, number: int = number, part: str = part) -> None:
            progress(number * total + done, len(conditions) * total, f"{part}: {message}")

        with bridge.hooks(fwd_hooks=[(name, CHANGES[kind]) for name in names]):
            result = evaluate(bridge, drawn, batch_size=batch_size, progress=report, bootstrap=0)
        frames[part] = result.to_dataframe()
    intact = frames[INTACT]
    patterns = (*dict.fromkeys(intact["pattern"]), *([WHOLE] if intact["pattern"].nunique() > 1 else []))
    picked = {name: (intact["pattern"] == name) | (name == WHOLE) for name in patterns}
    tables = [_table(frames, picked[name].to_numpy()) for name in patterns]
    measured: Any = {name: torch.stack([table[name] for table in tables], dim=1) for name in tables[0]}
    guess = [average(result.baseline, list(intact["task"][picked[name]].unique()))["fact-unif"] for name in patterns]
    return BranchAblation(
        parts=tuple(conditions),
        patterns=patterns,
        kind=kind,
        rows=rows,
        examples=examples,
        seed=seed,
        **measured,
        answers=torch.tensor([int(picked[name].sum()) for name in patterns]),
        clusters=torch.tensor([intact["cluster"][picked[name]].nunique() for name in patterns]),
        guess=torch.tensor([float(level) for level in guess]),
    )


def _zero(branch: Tensor, hook: Any) -> Tensor:
    return torch.zeros_like(branch)


def _rotate(branch: Tensor, hook: Any) -> Tensor:
    """Head h gets what head h - 1 was given."""
    return branch.roll(1, dims=1)


CHANGES = {"zero": _zero, "rotate": _rotate}

_PART = re.compile(r"(?:(?P<layer>\d+)\.)?(?P<stage>pre|post)(?:\.(?P<branch>\w+))?")


def default_parts(bridge: Bridge) -> list[str]:
    """Every branch that the model has, by stage, the whole stages, and everything."""
    found = [
        f"{stage}.{branch}"
        for stage in stages_of(bridge)
        for branch in ADDED_BRANCHES
        if _exists(bridge, stage, branch)
    ]
    return [*found, *(stages_of(bridge) if len(stages_of(bridge)) > 1 else ()), ALL]


def _hooks(bridge: Bridge, part: str) -> list[str]:
    """The hooks of the branches that make up a part.

    Raises:
        UserError: the model has no such part.
    """
    match = _PART.fullmatch(part)
    known = default_parts(bridge)
    if not match and part != ALL:
        raise UserError(f"There is no part {part!r} of the composition; {nearest(part, known)}")
    layer, stage, branch = match.groups() if match else (None, None, None)
    names = [
        f"blocks.{at}.attn.{each}.hook_o_{name}"
        for at in ([int(layer)] if layer else range(bridge.cfg.n_layers))
        for each in ([stage] if stage else stages_of(bridge))
        for name in ([branch] if branch else ADDED_BRANCHES)
    ]
    found = [name for name in names if name in bridge.hook_dict]
    if not found:
        raise UserError(f"This model has no part {part!r}; {nearest(part, known)}")
    return found


def _exists(bridge: Bridge, stage: str, branch: str) -> bool:
    return f"blocks.0.attn.{stage}.hook_o_{branch}" in bridge.hook_dict


def _table(frames: dict[str, Any], picked: Any) -> dict[str, Tensor]:
    """Accuracy, change and their intervals for every part, over some of the answers."""
    from synthetic_tasks.intervals import change_interval, share_interval

    first = frames[INTACT][picked]
    clusters = torch.from_numpy(first["cluster"].astype("category").cat.codes.to_numpy().copy()).long()
    size = int(clusters.max()) + 1
    correct = torch.stack([torch.from_numpy(f[picked]["correct"].to_numpy(dtype=float)) for f in frames.values()])
    sums = torch.zeros(len(frames), size, dtype=torch.double).index_add_(1, clusters, correct)
    counts = torch.bincount(clusters, minlength=size).double()
    accuracy = sums.sum(1) / counts.sum()
    low, high = map(torch.from_numpy, share_interval(sums.numpy(), counts.numpy()))
    change_low, change_high = map(torch.from_numpy, change_interval(sums[0].numpy(), sums.numpy(), counts.numpy()))
    change_low[0] = change_high[0] = 0  # the intact model is no change, for certain
    values = (accuracy, low, high, accuracy - accuracy[0], change_low, change_high)
    names = ("accuracy", "low", "high", "change", "change_low", "change_high")
    return {name: value.float() for name, value in zip(names, values, strict=True)}
