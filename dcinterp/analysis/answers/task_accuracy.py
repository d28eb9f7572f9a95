"""How well a model does the synthetic tasks: right answers per task, row and number of shots, with baselines.

    accuracy = answers whose every token is the most likely one / scored answers

The tasks and their scoring are those of the DCMHA paper's synthetic dataset (docs/tasks.md). Intervals count
clusters, not answers: rows of the same number of partner tasks share their facts (synthetic_tasks.intervals).

It does not show understanding: a baseline that ignores the question (`odd_one_out`) solves 46 of the 74 tasks, so
compare with the baselines on the same tasks, and per QK pattern.

Identity that the tests assert: every table's accuracy is the mean of `right` over the answers that belong to it.

    scores = dcinterp.task_accuracy(model, tasks="same-person", rows=4)
    scores.table("pattern")
    dcinterp.figures.plot(scores)                    # QK pattern x transformation
    dcinterp.figures.plot(scores, kind="shots")      # against the number of shots
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.former_names import former_name
from dcinterp.support.progress import Progress, all_once, silent
from dcinterp.support.ranges import Count

BASELINES = {
    "fact_unif": "fact-unif",
    "value_unif": "value-unif",
    "ignores_negation": "ignores negation",
    "odd_one_out": "odd-one-out",
}
"""Fields, and what synthetic_tasks.baselines calls them."""

GROUPINGS = ("all", "pattern", "transformation", "family", "task", "shots")


@dataclass(frozen=True)
class TaskAccuracy(Result):
    """right and logprob [task, row, answer]; the expected accuracy of four baselines [task].

    shots: how many solved examples stand before each answer of a row; patterns, transformations, partners: of the
    tasks; tasks with the same partner share their facts.
    """

    FORMER: ClassVar[dict[str, str]] = {"polarity_blind": "ignores_negation"}
    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "right": ("task", "row", "answer"),
        "logprob": ("task", "row", "answer"),
        **{baseline: ("task",) for baseline in BASELINES},
    }
    LISTS: ClassVar[dict[str, tuple[str, ...]]] = {
        **dict.fromkeys(("tasks", "patterns", "transformations", "partners"), ("task",)),
        "shots": ("answer",),
    }

    tasks: tuple[str, ...]
    patterns: tuple[str, ...]
    transformations: tuple[str, ...]
    partners: tuple[str, ...]
    shots: tuple[int, ...]
    split: str
    seed: int
    right: Float[Tensor, "task row answer"]
    logprob: Float[Tensor, "task row answer"]
    fact_unif: Float[Tensor, " task"]
    value_unif: Float[Tensor, " task"]
    ignores_negation: Float[Tensor, " task"]
    odd_one_out: Float[Tensor, " task"]

    polarity_blind = former_name("polarity_blind", "ignores_negation")

    def labels(self, axis: str) -> list[Any] | None:
        return {"task": list(self.tasks), "answer": [f"{shots} shots" for shots in self.shots]}.get(axis)

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return float(self.right.mean())

    def table(self, by: str = "pattern", *, resamples: int | None = None) -> pd.DataFrame:
        """One line a group: answers, accuracy with its 95 % interval, and the baselines on the same tasks.

        Args:
            by: one of GROUPINGS.
            resamples: of no effect: intervals are computed, where version 0.1 drew them.

        Raises:
            UserError: there is no such grouping.
        """
        if by not in GROUPINGS:
            raise UserError(f"No table is made by {by!r}; {nearest(by, GROUPINGS)}")
        lines = []
        for name, tasks, answers in self._groups(by):
            right = self.right[tasks][:, :, answers].numpy()
            low, high = self._interval(tasks, right)
            line = {by: name, "answers": right.size, "accuracy": float(right.mean()), "low": low, "high": high}
            lines.append(line | {baseline: float(getattr(self, baseline)[tasks].mean()) for baseline in BASELINES})
        return pd.DataFrame(lines)

    def warnings(self) -> list[str]:
        """That there is no interval where all rows share their facts."""
        low, _ = self._interval(list(range(len(self.tasks))), self.right.numpy())
        few = "All rows share their facts and count as one, so there is no interval: give more `rows`, or more tasks."
        return [few] if np.isnan(low) else []

    def _groups(self, by: str) -> list[tuple[Any, list[int], list[int]]]:
        """(name, tasks, answers) of every group."""
        everything, answers = list(range(len(self.tasks))), list(range(len(self.shots)))
        if by == "all":
            return [("all", everything, answers)]
        if by == "shots":
            return [(shots, everything, [at]) for at, shots in enumerate(self.shots)]
        families = [f"{p} x {t}" for p, t in zip(self.patterns, self.transformations, strict=True)]
        named = {
            "pattern": self.patterns,
            "transformation": self.transformations,
            "family": families,
            "task": self.tasks,
        }[by]
        return [(name, [i for i in everything if named[i] == name], answers) for name in dict.fromkeys(named)]

    def _interval(self, tasks: list[int], right: np.ndarray) -> tuple[float, float]:
        """Of the accuracy; a cluster is a row of partner tasks."""
        from synthetic_tasks.intervals import share_interval

        partners = [self.partners[i] for i in tasks]
        names = list(dict.fromkeys(partners))
        sums = np.zeros((len(names), right.shape[1], 2))
        for partner, row in zip(partners, right, strict=True):
            sums[names.index(partner)] += np.stack([row.sum(1), np.full(len(row), row.shape[1])], axis=1)
        clusters = sums.reshape(-1, 2)
        low, high = share_interval(clusters[:, 0], clusters[:, 1])
        return float(low), float(high)


@analysis(
    title="Accuracy on the tasks",
    ignore=("batch_size",),
    question="Which tasks can the model do?",
    guide="tasks.md",
    in_units=True,
    example={"tasks": "same-person", "rows": "1"},
)
def task_accuracy(
    bridge: Bridge,
    *,
    tasks: str = "",
    rows: Count = 2,
    examples: Count = 8,
    seed: int = 0,
    split: str = "held-out",
    batch_size: Count = 4,
    progress: Progress = silent,
) -> TaskAccuracy:
    """Accuracy on generated rows of the tasks.

    Args:
        bridge: any bridge whose tokenizer knows the words of the tasks.
        tasks: which, as `dcinterp tasks evaluate --tasks` takes them ("same-person,56"); all 74 by default.
        rows: rows per task.
        examples: examples in a row; the third to the last are scored, with the earlier ones as shots.
        seed: seed of the rows.
        split: "held-out" facts, which no shipped model was trained on, or "train".
        batch_size: rows per forward pass.
        progress: called after each batch; one with a method `partial` is given the result so far.

    Cost: one forward pass per row.

    Raises:
        UserError: a task is unknown, a number is too small, or the rows do not fit the model.
    """
    from synthetic_tasks import evaluate, generate
    from synthetic_tasks.evaluate import context_length
    from synthetic_tasks.selection import chosen

    if rows < 1 or examples < 1:
        raise UserError(f"rows and examples are at least 1, not {rows} and {examples}.")
    if split not in ("held-out", "train"):
        raise UserError(f"There is no split {split!r}; choose held-out or train.")
    if (context := context_length(bridge)) is not None and examples > context:  # before they are all drawn
        raise UserError(f"A row of {examples:,} examples does not fit the {context:,} tokens of the model; give fewer.")
    try:
        wanted = chosen(tasks)
        show = getattr(progress, "partial", None)

        def answer(number: int, task: Any) -> Any:
            def scored(done: int, _: int, __: str) -> None:
                progress(number * rows + done, len(wanted) * rows, task.id)

            drawn = generate(task, rows, seed, examples=examples, split=split)  # type: ignore[arg-type]
            return evaluate(bridge, drawn, batch_size=batch_size, progress=scored, bootstrap=0)

        def shown(found: list[Any]) -> None:
            if show is not None and len(found) % 4 == 0:
                show(_gathered(list(zip(wanted, found, strict=False)), rows, split, seed))

        units = [(task.id, partial(answer, number, task)) for number, task in enumerate(wanted)]
        made = all_once(progress, units, report=False, after=shown)
    except ValueError as error:
        raise UserError(str(error).splitlines()[0]) from error
    return _gathered(list(zip(wanted, made, strict=True)), rows, split, seed)


def _gathered(made: list[tuple[Any, Any]], rows: int, split: str, seed: int) -> TaskAccuracy:
    """The evaluations of the tasks as one result."""
    frames = [evaluation.to_dataframe() for _, evaluation in made]
    shots = tuple(int(k) for k in sorted(frames[0]["shots"].unique()))

    def cube(column: str) -> Tensor:
        values = [frame.sort_values(["row", "shots"])[column].to_numpy(dtype=np.float32) for frame in frames]
        return torch.from_numpy(np.stack(values)).reshape(len(made), rows, len(shots))

    baselines: dict[str, Any] = {
        name: torch.tensor([evaluation.baseline[task.id].get(baseline, float("nan")) for task, evaluation in made])
        for name, baseline in BASELINES.items()
    }
    return TaskAccuracy(
        tasks=tuple(task.id for task, _ in made),
        patterns=tuple(task.qk for task, _ in made),
        transformations=tuple(task.relation for task, _ in made),
        partners=tuple(task.partner for task, _ in made),
        shots=shots,
        split=split,
        seed=seed,
        right=cube("correct"),
        logprob=cube("logprob"),
        **baselines,
    )
