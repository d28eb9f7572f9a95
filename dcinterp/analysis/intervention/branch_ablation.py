r"""A model's accuracy on the tasks without a part of its composition: the causal question, answered by ablation.

    change(part, pattern) = accuracy with the part ablated - accuracy of the model as it is, on the same rows

A part is one branch in all layers ("post.kp"), in one layer ("1.post.kp"), a whole stage ("pre", "2.post") or "all":
every term that composition adds; the skip stays. What takes its place is a kind of dcinterp.mechanism.ablation. The
default, "mean", puts in every branch's mean map over heads, taken over fresh rows of the same task: composition that
no longer depends on the token or the example, but keeps what all rows of the task have in common. Beside it stands
zero, which also takes that away: a state that the model never trained in ("all" at zero is plain attention with the
trained weights, or with a static map W_b, which is no branch and stays). As a control, kind="rotate" keeps every
branch as large as it is and gives each head the term of its neighbour.

Source: mean and zero ablation, as in Wang et al. 2022 (IOI); the mean map and the rotated control are ours.

It does not show how a part acts, nor that a model trained without it could not do as well. If the whole model is only
as good as guessing a fact (`guess`), an ablation can affect the relation, but not the choice of a fact.

Identity that the tests assert: with "all" at zero, the accuracy is that of the same weights in a model that does not
compose (without a static map).

    ablation = dcinterp.branch_ablation(model, tasks="different-in-set", rows=4)
    ablation.table()                             # change with clustered 95 % intervals, and that of zero beside it
    dcinterp.figures.plot(ablation)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.ablation import ABLATIONS, DEFAULT, Kind, Replacement, replacement
from dcinterp.mechanism.branches import ADDED as ADDED_BRANCHES
from dcinterp.mechanism.path_gradient import Hooks
from dcinterp.mechanism.prompt import token_ids
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest, require_known
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count

FEW = 10
"""With fewer clusters an interval is wide, and its coverage was not simulated below 6."""

REFERENCE_ROWS = 2
"""Rows of a task that the values of an ablation come from; with eight examples, some five hundred positions."""

APART = 1_000_003
"""Added to the seed for the rows that values come from, so that they are none of those that are scored."""

INTACT, ALL, WHOLE = "intact", "all", "all tasks"


@dataclass(frozen=True)
class BranchAblation(Result):
    """Accuracy [part, pattern] with a part removed, and its change against the first part, "intact".

    Intervals (low, high; change_low, change_high) are 95 %, by clusters of rows that share facts, and those of changes
    are of pairs: row by row against the intact model (see synthetic_tasks.intervals). answers, clusters [pattern]: how
    many are scored, and in how many clusters; guess [pattern]: accuracy of the right relation applied to a random fact.
    Intervals are not corrected for the number of parts and patterns: of 20 without any effect, one excludes zero.

    reference: rows of each task that the ablation takes its values from; 0 if it needs none. unmatched: share of the
    resampled positions for which none of them had the position or the token. zero: the same with every part at zero,
    unless that is the kind.
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
    reference: int | None = None
    unmatched: float | None = None
    zero: BranchAblation | None = None

    def labels(self, axis: str) -> list[str] | None:
        return {"part": list(self.parts), "pattern": list(self.patterns)}.get(axis)

    def certain(self, part: str, pattern: str = WHOLE) -> bool:
        """Whether the interval of a change excludes zero."""
        p, q = self.parts.index(part), self.patterns.index(pattern)
        return bool(self.change_low[p, q] > 0) or bool(self.change_high[p, q] < 0)  # NaN, no interval, excludes nothing

    @property
    def guessed(self) -> tuple[str, ...]:
        """Patterns in which the interval of the intact model holds the level of guessing, or lies below it.

        In these it is not shown that the model does better than guessing; with few rows it may.
        """
        above = ~(self.low[self.parts.index(INTACT)] <= self.guess)
        return tuple(name for name, better in zip(self.patterns, above.tolist(), strict=True) if not better)

    def table(self) -> pd.DataFrame:
        """One row a part and pattern; the change with zero in the part's place stands in the last columns."""
        frame = self.to_dataframe().drop(columns=["part", "pattern"])
        frame = frame.rename(columns={"part_label": "part", "pattern_label": "pattern"})
        if self.zero is not None:
            for name in ("change", "change_low", "change_high"):
                frame[f"{name}_at_zero"] = getattr(self.zero, name).flatten().tolist()
        return frame

    def warnings(self) -> list[str]:
        """Patterns in which the model only guesses a fact, zero as a kind, rows too few, and donors that lack."""
        sentences = []
        if self.guessed:
            sentences.append(
                "That the intact model does better than a random fact with the right relation is not shown on "
                f"{', '.join(self.guessed)} (the interval of its accuracy reaches down to that): there, this ablation "
                "does not show how a fact is chosen."
            )
        if self.kind == "zero":
            sentences.append(
                "Every part is set to zero, a state that the model never trained in: compare with kind 'mean'."
            )
        if self.unmatched:
            what = "token" if self.kind == "resample-token" else "position"
            sentences.append(
                f"For {self.unmatched:.0%} of the resampled positions no other row of the task has the same {what}; "
                "they take their values from somewhere else in another row."
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
    before={"kind": "zero"},
    question="What is left of the accuracy without a part of the composition?",
    guide="analyses/branch-ablation.md",
    example={"tasks": "56", "rows": "1"},
)
def branch_ablation(
    bridge: Bridge,
    *,
    tasks: str = "",
    parts: Sequence[str] | None = None,
    kind: Kind = DEFAULT,
    rows: Count = 2,
    examples: Count = 8,
    seed: int = 1,
    batch_size: Count = 4,
    resamples: Count = 1000,
    progress: Progress = silent,
) -> BranchAblation:
    """Accuracy on freshly generated held-out rows with each part of the composition ablated in turn.

    Args:
        bridge: a bridge over a DCFormer with the tokenizer of the tasks (or one that knows their words).
        tasks: which, as `dcinterp tasks evaluate --tasks` takes them ("same-person,56"); all 74 by default.
        parts: what to ablate: "post.kp", "1.post.kp", "pre", "2.post" or "all"; every stage, every branch of each and
            "all" by default.
        kind: what takes their place: "mean" (over other rows of the task), "zero", "resample" (the map at the same
            position of another row of the task), "resample-token" (where the same token stands in one) or "rotate" (the
            term of the head before).
        rows: rows per task, of `examples` examples, of which the third to the last are scored.
        examples: examples in a row.
        seed: seed of the rows (`task_accuracy` has 0, so that its rows are others), of the other rows that values come
            from, and of the resampling.
        batch_size: rows per forward pass.
        resamples: of no effect: intervals are computed, where version 0.1 drew them.
        progress: called as rows are done.

    Cost: (2 parts + 1) forward passes of every row (parts + 1 for zero), which keep to the tapped path, and one of
    `REFERENCE_ROWS` rows of each task for every part: 1702 and 1628 rows with rows=1 and all parts.

    Raises:
        UserError: the model is not composed, a part or task does not exist, or a word is unknown to the tokenizer.
    """
    from synthetic_tasks import generate
    from synthetic_tasks.selection import chosen

    require_known("kind of ablation", kind, ABLATIONS)
    if parts is not None and not len(parts):
        raise UserError("There are no parts to ablate; name at least one, or leave them out for all.")
    named = {part: hooks_of(bridge, part) for part in (default_parts(bridge) if parts is None else parts)}
    try:
        picked = chosen(tasks)
        drawn = [row for task in picked for row in generate(task, rows, seed, examples=examples, split="held-out")]
    except ValueError as error:
        raise UserError(str(error)) from error
    values = {}
    for task in picked if ABLATIONS[kind].reference else ():
        others = generate(task, REFERENCE_ROWS, seed + APART, examples=examples, split="held-out")
        names = [name for each in named.values() for name in each]
        values[task.id] = replacement(bridge, names, kind, [token_ids(bridge, row.prompt) for row in others], seed)
    kinds = (kind,) if kind == "zero" else (kind, "zero")
    run = _Run(bridge, drawn, values, batch_size, progress, passes=1 + len(kinds) * len(named))
    intact = run.accuracy(INTACT)
    found = {
        each: _result(
            {INTACT: intact, **{part: run.accuracy(part, names, each) for part, names in named.items()}},
            run.baseline,
            resamples,
            kind=each,
            rows=rows,
            examples=examples,
            seed=seed,
            reference=REFERENCE_ROWS if ABLATIONS[each].reference else 0,
        )
        for each in kinds
    }
    return replace(found[kind], unmatched=run.unmatched, zero=None if kind == "zero" else found["zero"])


@dataclass
class _Run:
    """The same rows again and again, each time under other hooks. values: of all parts, by task."""

    bridge: Bridge
    drawn: list[Any]
    values: Mapping[str, Replacement]
    batch_size: int
    progress: Progress
    passes: int
    done: int = 0
    baseline: Any = None

    @property
    def unmatched(self) -> float | None:
        """The share of resampled positions without a match."""
        counts = [values.unmatched for values in self.values.values()]
        positions = sum(count.positions for count in counts)
        return sum(count.without for count in counts) / positions if positions else None

    def accuracy(self, part: str, names: Sequence[str] = (), kind: str = "zero") -> pd.DataFrame:
        """What `evaluate` finds, one row an answer, with these branches ablated."""
        from synthetic_tasks.scoring import padding_of

        if not ABLATIONS[kind].reference:
            return self._evaluate(self.drawn, replacement(self.bridge, names, kind).hooks(), f"{part}, {kind}")
        frames, padding = [], padding_of(self.bridge.tokenizer)
        for task, values in self.values.items():  # in the order of the rows; each task has values of its own
            some = [row for row in self.drawn if row.task_id == task]
            frames.append(self._evaluate(some, values.only(names).hooks(padding), f"{part}, {kind}"))
        return pd.concat(frames, ignore_index=True)

    def _evaluate(self, rows: list[Any], hooks: Hooks, message: str) -> pd.DataFrame:
        from synthetic_tasks import evaluate

        total = len(self.drawn)

        def report(done: int, some: int, _: str) -> None:
            self.progress(self.done + done, self.passes * total, message)

        with self.bridge.hooks(fwd_hooks=list(hooks)):
            result = evaluate(self.bridge, rows, batch_size=self.batch_size, progress=report, bootstrap=0)
        self.done += len(rows)
        if self.baseline is None:
            self.baseline = result.baseline
        return result.to_dataframe()


def _result(
    frames: dict[str, pd.DataFrame], baseline: Any, resamples: int, *, seed: int, **said: Any
) -> BranchAblation:
    """Accuracies, changes and intervals from the answers under each condition, the intact one first."""
    from synthetic_tasks.baselines import average

    intact = frames[INTACT]
    patterns = (*dict.fromkeys(intact["pattern"]), *([WHOLE] if intact["pattern"].nunique() > 1 else []))
    picked = {name: (intact["pattern"] == name) | (name == WHOLE) for name in patterns}
    tables = [_table(frames, picked[name].to_numpy()) for name in patterns]
    measured: Any = {name: torch.stack([table[name] for table in tables], dim=1) for name in tables[0]}
    guess = [average(baseline, list(intact["task"][picked[name]].unique()))["fact-unif"] for name in patterns]
    return BranchAblation(
        parts=tuple(frames),
        patterns=patterns,
        seed=seed,
        **said,
        **measured,
        answers=torch.tensor([int(picked[name].sum()) for name in patterns]),
        clusters=torch.tensor([intact["cluster"][picked[name]].nunique() for name in patterns]),
        guess=torch.tensor([float(level) for level in guess]),
    )


_PART = re.compile(r"(?:(?P<layer>-?\d+)\.)?(?P<stage>pre|post)(?:\.(?P<branch>\w+))?")


def default_parts(bridge: Bridge) -> list[str]:
    """Every branch that the model has, by stage, the whole stages, and everything."""
    found = [
        f"{stage}.{branch}"
        for stage in stages_of(bridge)
        for branch in ADDED_BRANCHES
        if _exists(bridge, stage, branch)
    ]
    return [*found, *(stages_of(bridge) if len(stages_of(bridge)) > 1 else ()), ALL]


def hooks_of(bridge: Bridge, part: str) -> list[str]:
    """The hooks of the branches that make up a part.

    Raises:
        UserError: the model has no such part.
    """
    match = _PART.fullmatch(part)
    known = default_parts(bridge)
    if not match and part != ALL:
        raise UserError(f"There is no part {part!r} of the composition; {nearest(part, known)}")
    layer, stage, branch = match.groups() if match else (None, None, None)
    layers = range(bridge.cfg.n_layers)
    chosen = layers if layer is None else [int(layer) + len(layers) * layer.startswith("-")]
    names = [
        f"blocks.{at}.attn.{each}.hook_o_{name}"
        for at in chosen
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
