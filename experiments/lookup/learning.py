"""When the models of the experiment learn the pairs that training shows, and whether they still learn at its end.

    python experiments/lookup/learning.py

reads what the runs measured as they went (so the runs must be there, not only their table), adds those that are missing
to learning.csv of this folder, and prints the table, which is also at the end of the page (more-learning.md).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsFolder, RunsTable, print_measured, trained_models
from dcinterp.support.errors import UserError
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment
from dcinterp.train.loop.metrics_file import read_metrics

HERE = Path(__file__).parent
TABLE, TEXT_FILE, OURS = "learning.csv", "more-learning.md", "DCMHA"
QUARTERS, STILL = 4, 0.02
FALL = """
Arms with a cooldown (recipe.cooldown_steps) are never said to be still learning: their rate falls at the end, and what
they gain then may come from that."""

TEXT = """## Over training

Means over {seeds} seeds of the accuracy on pairs that training shows, on documents that it does not; it is measured
every {every} steps. *last quarter* is what the mean gained over the last quarter of a run: with {still:+.2f} or more an
arm is said to be still learning; a flat end may be the schedule's, whose rate falls to the end. *steps to {at:.0%}*:
after how many an accuracy of {at:.0%} was measured first, the median and in brackets the least and the most, of the
seeds that came there at any step. *{ours} earlier*: in how many seeds {ours} came there at an earlier step than this
arm, or this arm never did; and in how many both were first seen there at the same step.{others}

    python experiments/{folder}/learning.py{options}

{table}
"""


def measure(_experiment: Experiment, _arm: str, model: Path) -> list[dict[str, Any]]:
    """A row for every step at which accuracy was measured."""
    return [
        {"step": int(each["step"])} | {part: round(value, 5) for part, value in each["accuracy"]["1"].items()}
        for each in read_metrics(model.parent / "metrics.jsonl")
        if "accuracy" in each
    ]


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """Means over training, and when each arm came to what counts as solved, as Markdown.

    options: of the command that makes it again.

    Raises:
        UserError: there are no runs of an arm, or no arm of ours.
    """
    lines, lengths = [], sorted(set(rows.groupby("arm")["step"].max()))
    by_arm = {arm: _seen(rows, arm) for arm in experiment.arms}
    if none := [arm for arm in dict.fromkeys((OURS, *experiment.arms)) if arm not in by_arm or not len(by_arm[arm])]:
        raise UserError(
            f"The table over training needs runs of every arm, and of one called {OURS}; of {', '.join(none)} of "
            f"{experiment.folder} there are none."
        )
    when = {arm: _first_steps(seen, experiment.solved_at) for arm, seen in by_arm.items()}
    rivals = {arm: _ours(arm, experiment) for arm in by_arm}
    shown = sorted({length * n // QUARTERS for length in lengths for n in range(1, QUARTERS + 1)})
    for arm, seen in by_arm.items():
        end = seen.index.max()
        quarter = end - end // QUARTERS
        gained = f"{seen.loc[end].mean() - seen.loc[quarter].mean():+.3f}" if quarter in seen.index else "not measured"
        steps, ours = when[arm], when[rivals[arm]]
        first, both = steps[steps < math.inf], steps.index.intersection(ours.index)
        earlier, same = (
            int((ours[both] < steps[both]).sum()),
            int(((ours[both] == steps[both]) & (ours[both] < math.inf)).sum()),
        )
        to = f"{first.median():,.0f} [{first.min():,.0f}, {first.max():,.0f}]" if len(first) else "none"
        means = [f"{seen.loc[step].mean():.3f}" if step in seen.index else "" for step in shown]
        before = "" if arm == rivals[arm] else f"{earlier} of {len(both)}" + f", {same} at the same step" * bool(same)
        lines.append([arm, *means, gained, to, f"{len(first)} of {len(steps)}", before])
    head = ["arm", *(f"{step:,}" for step in shown), "last quarter", f"steps to {experiment.solved_at:.0%}"]
    others = sorted(each.removeprefix(OURS).strip() for each in {*rivals.values()} - {OURS})
    return TEXT.format(
        seeds=rows["seed"].nunique(),
        ours=OURS,
        others="".join(f" For other arms that end in *{end}*, *{OURS} {end}* stands for *{OURS}*." for end in others)
        + FALL * any("recipe.cooldown_steps" in changes for changes in experiment.arms.values()),
        every=rows["step"].min(),
        still=STILL,
        at=experiment.solved_at,
        folder=HERE.name,
        options=options,
        table=markdown_table([*head, "seeds", f"{OURS} earlier"], lines),
    )


def _ours(arm: str, experiment: Experiment) -> str:
    """The arm of DCMHA that this one is compared with: one that ends in the same words, or that without any.

    So an arm "DCMHA late" is for arms that end in "late", and names like it are kept for that.
    """
    ends = (each for each in experiment.arms if each.startswith(f"{OURS} ") and arm.endswith(each.removeprefix(OURS)))
    return max(ends, key=len, default=OURS)


def _seen(rows: pd.DataFrame, arm: str) -> pd.DataFrame:
    """[step, seed]: the accuracy on pairs seen."""
    return rows[rows["arm"] == arm].pivot_table(index="step", columns="seed", values="seen")


def _first_steps(seen: pd.DataFrame, at: float) -> pd.Series:
    """[seed]: the first step at which an accuracy of `at` was measured; infinite where none was.

    seen: [step, seed] of `_seen`.
    """
    reached = seen >= at
    return reached.idxmax().where(reached.any(), math.inf)


def main(
    table: RunsTable = None,
    folder: RunsFolder = HERE,
) -> None:
    """Read the runs that are missing, and print the table."""
    print_measured(trained_models(folder, HERE, table), TABLE, TEXT_FILE, measure, summary)


if __name__ == "__main__":
    run_script(main)
