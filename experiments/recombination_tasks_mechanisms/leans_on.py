"""Which combinations and which seeds every difference leans on.

    python experiments/recombination_tasks_mechanisms/leans_on.py
    python experiments/recombination_tasks_mechanisms/leans_on.py --table again.csv
    python experiments/recombination_tasks_mechanisms/leans_on.py --folder experiments/another

reads the table of the runs and by_combination.csv, and prints tables, which are also at the end of the page
(more-leans-on.md). For the first seeds they were added when all runs had been read, so that nothing is concluded from
them; for others the protocols ask something of them.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

from dcinterp.evidence.intervals import interval_text
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import (
    RunsFolder,
    RunsTable,
    measured_before,
    print_text,
    trained_models,
    with_all_arms,
)
from dcinterp.evidence.verdicts import level_of_family
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment, reported_runs

HERE = Path(__file__).parent
MEASURED, TEXT_FILE = "by_combination.csv", "more-leans-on.md"
MADE_BY = "experiments/recombination_tasks/by_combination.py"
RESAMPLES = 20_000
"""With as few as elsewhere an end near zero would hang on the draws."""

LOOKED = "Looked at when all runs had been read, so nothing is concluded"
ASKED = "The protocol says what is asked of these tables; of the rest nothing is concluded"
TEXT = """## What the differences lean on

{looked}. First, each mean difference on the tasks left out
without one of the five combinations, with the interval over seeds at {level:.2%}, as all in this section:

{combinations}

Then without one of the seeds, behind what that seed has. With nine values that are skewed the interval reaches far on
that side (up to 2.5 times as far as Student's t), so an end near zero says little:

{seeds}

And apart for the seeds in which both arms have {at:.0%} of the tasks seen and the others, with the loss in training, at
its end, of the arm and its baseline; these seeds are chosen by their outcome, so there is no interval:

{learnt}

The difference on the tasks seen, over all seeds, at {level:.2%} (at 95 %: *Where both arms learnt the tasks seen*):
{seen}.

    python experiments/recombination_tasks_mechanisms/leans_on.py{options}

"""


def between(apart: pd.Series, level: float) -> str:
    """The mean of differences of accuracies over seeds, with its interval."""
    values = torch.tensor(apart.to_numpy())
    low, high = bootstrap_interval(values, level=level, bounds=(-1.0, 1.0), resamples=RESAMPLES)
    return interval_text(float(values.mean()), float(low), float(high), sign="+")


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """The three tables, as Markdown; `options` are those of the command that makes them again."""
    asked = experiment.hypotheses
    level = level_of_family(experiment)
    names = [each.name for each in asked]

    def right(chosen: pd.DataFrame) -> pd.DataFrame:
        return chosen.pivot_table(index="seed", columns="arm", values="right")

    rows = with_all_arms(rows, experiment)
    whole, without = right(rows), []
    apart = {each.name: each.by_seed(whole) for each in asked}
    for one in experiment.config["data"]["holdout"]:
        rest = right(rows[rows["combination"] != one])
        without.append([one, *(between(each.by_seed(rest), level) for each in asked)])
    seeds = [
        [f"{seed:.0f}", *(f"{found[seed]:+.3f}; {between(found.drop(seed), level)}" for found in apart.values())]
        for seed in whole.index
    ]
    runs = reported_runs(experiment)
    runs = runs[runs["recipe.seed"].isin(whole.index)]  # of a seed with a model that is gone nothing was asked
    seen, loss = (
        runs.pivot_table(index="recipe.seed", columns="arm", values=each) for each in (experiment.solved_by, "loss")
    )
    on_seen = [f"{each.name} {between(each.by_seed(seen), level)}" for each in asked]
    learnt = []
    for each in asked:
        both = (seen[[*each.arms, *each.baselines]] >= experiment.solved_at).all(axis=1)
        for words, those in (("both", both.index[both]), ("not both", both.index[~both])):
            if not len(those):
                continue
            mean = [f"{loss.loc[those, list(arms)].to_numpy().mean():.2f}" for arms in (each.arms, each.baselines)]
            listed = ", ".join(f"{seed:.0f}" for seed in those)
            learnt.append([each.name, words, listed, f"{apart[each.name][those].mean():+.3f}", *mean])
    head = ["difference", "learnt by", "seeds", "on tasks left out", "loss of the arm", "loss of its baseline"]
    return TEXT.format(
        looked=ASKED if options else LOOKED,
        options=options,
        level=level,
        at=experiment.solved_at,
        combinations=markdown_table(["without", *names], without),
        seeds=markdown_table(["seed", *names], seeds),
        learnt=markdown_table(head, learnt),
        seen=", ".join(on_seen),
    )


def main(
    table: RunsTable = None,
    folder: RunsFolder = HERE,
) -> None:
    """Write the tables and print them."""
    trained = trained_models(folder, HERE, table)
    rows = measured_before(trained, MEASURED, MADE_BY, folder, table)
    print_text(
        summary(rows, trained.experiment, trained.options),
        trained.place / TEXT_FILE,
    )


if __name__ == "__main__":
    run_script(main)
