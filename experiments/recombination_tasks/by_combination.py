"""How models of the experiment answer each combination of a pattern and a relation that their training left out.

    python experiments/recombination_tasks/by_combination.py
    python experiments/recombination_tasks/by_combination.py --folder experiments/recombination_tasks_two_heads

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
by_combination.csv of that folder, and prints the table, which is also at the end of the experiment's page
(more-by-combination.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

import synthetic_tasks
from dcinterp.analysis.answers.task_accuracy import task_accuracy
from dcinterp.checkpoints.load import load
from dcinterp.evidence.intervals import mean_and_range
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsFolder, RunsTable, print_measured, trained_models, with_all_arms
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment, reported_runs
from dcinterp.train.data.task_choice import held_out_tasks

HERE = Path(__file__).parent
TABLE, TEXT_FILE = "by_combination.csv", "more-by-combination.md"
FINDING = ("the-other-object", "same-object")
"""Patterns that ask who: the relation says which fact is meant."""
ODD = 0.5
"""Where the fact that is unlike the others is right less often, it is no better than a random one (1.00 or 0.33)."""

LAST = """The last row is of
the {both} in which every arm has {at:.0%} of the tasks seen, chosen by their outcome."""
NO_LAST = """In no
seed has every arm {at:.0%} of the tasks seen."""

TEXT = """## Each combination by itself

The questions of the primary measure, apart for the five combinations that training left out, with means over {seeds}
seeds. *what is said* is the mean of the tasks whose relation makes the answer, *who* that of the tasks which ask who,
whose relation says which fact is meant. *as in H1* is the difference that H1 is about, in brackets the least and the
largest of a seed, which are no interval. Nothing is concluded from one of them. *random fact* is the right relation of
a random fact, *odd fact* that of the fact which is unlike the others, where there is one; neither reads the question.
*odd fact no better* is the mean of the combinations in which that is no better than a random fact. {last}

    python experiments/recombination_tasks/by_combination.py{options}

{table}
"""


def measure(experiment: Experiment, _arm: str, model: Path) -> list[dict[str, Any]]:
    """A row for each task left out: the share of right answers, and of two ways to answer without the question."""
    held_out = held_out_tasks(tuple(experiment.config["data"]["holdout"]))
    answers = experiment.config["evaluation"]["answers_per_task"]
    numbers = ",".join(name.removeprefix("task") for name in sorted(held_out))
    found = task_accuracy(load(str(model)), tasks=numbers, rows=answers, examples=1, batch_size=64)
    return [
        {
            "task": each["task"],
            "combination": ":".join(synthetic_tasks.TASKS[each["task"]].family),
            "right": round(each["accuracy"], 5),
            "random fact": round(each["fact_unif"], 5),
            "odd fact": round(each["odd_one_out"], 5),
        }
        for _, each in found.table("task").iterrows()
    ]


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """Means of the arms for each combination and for the two kinds of tasks, over seeds with all arms, as Markdown.

    options: of the command that makes it again.
    """
    rows = with_all_arms(rows, experiment)
    who = rows["combination"].str.split(":").str[0].isin(FINDING)
    groups = {name: rows["combination"] == name for name in experiment.config["data"]["holdout"]}
    least = reported_runs(experiment).groupby("recipe.seed")[experiment.solved_by].min()
    solved = rows["seed"].isin(least.index[least >= experiment.solved_at])
    groups |= {
        "what is said": ~who,
        "who": who,
        "odd fact no better": rows["odd fact"] < ODD,
        "all": who | ~who,
    }
    both = rows.loc[solved, "seed"].nunique()
    if both:
        groups["all, seeds where all arms learnt the tasks seen"] = solved
    primary = next(iter(experiment.measures))
    asked = [each for each in experiment.hypotheses if each.measure in ("", primary)]
    lines = []
    for name, chosen in groups.items():
        of = rows[chosen]
        arms = [f"{of.loc[of['arm'] == arm, 'right'].mean():.3f}" for arm in experiment.arms]
        shares = of.pivot_table(index="seed", columns="arm", values="right")
        apart = [mean_and_range(each.by_seed(shares)) for each in asked]
        lines.append([name, *arms, *apart, *(f"{of[column].mean():.2f}" for column in ("random fact", "odd fact"))])
    named = [f"as in {each.name}" for each in asked]
    table = markdown_table(["tasks", *experiment.arms, *named, "random fact", "odd fact"], lines)
    return TEXT.format(
        seeds=rows["seed"].nunique(),
        last=(LAST if both else NO_LAST).format(both=f"{both} seed{'s' * (both != 1)}", at=experiment.solved_at),
        options=options,
        table=table,
    )


def main(
    table: RunsTable = None,
    folder: RunsFolder = HERE,
) -> None:
    """Measure the models that are missing, and print the table."""
    print_measured(trained_models(folder, HERE, table), TABLE, TEXT_FILE, measure, summary)


if __name__ == "__main__":
    run_script(main)
