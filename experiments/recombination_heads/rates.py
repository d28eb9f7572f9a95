"""Whether what an experiment found hangs on the rates that its search chose: all arms again, at one rate for all.

    python experiments/recombination_heads/rates.py --jobs 2

trains the runs of the reported seeds that are missing (a minute each; those at the rate that the search chose are in
the experiment's table already), adds them to rates.csv of this folder, and prints the tables, which are also at the end
of the experiment's page (more.md). It resumes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from dcinterp.bench.experiment_page import differences
from dcinterp.support.errors import UserError
from dcinterp.support.progress import console
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import FINAL, Experiment, read_experiment, read_table
from dcinterp.train.control.sweep import Sweep, run_sweep

HERE = Path(__file__).parent
TABLE, TEXT_FILE, KEY = "rates.csv", "more.md", "recipe.learning_rate"
RATES = (3.0e-3, 1.7e-3)
"""In the order in which they are run. The lowest rate of the search, 1e-3, is left out: two thirds of the runs at it
would be new."""

TEXT = """## At one rate for all arms

The search chose rates by the training loss, and in all arms but *DCMHA 2* and *plain 2* that loss is below 1e-4 at two
rates or all three: so small a difference says nothing of what a model does with unseen pairs, and yet it decided. *More
4* was given 1.7e-3; at 3e-3 it had all unseen pairs right with both seeds of the search. So with the results known the
same seeds of every arm were trained at one rate for all. These numbers describe, and have no verdict.

    python experiments/recombination_heads/rates.py --jobs 2

{tables}

So its rate was not why *more 4* is low: with the reported seeds it has {low} of the
unseen pairs right. What two seeds of a search show of unseen pairs is mostly chance.

But what comes out hangs on the rate. From {high_rate:g} to {low_rate:g} the mean on unseen pairs changes so:
{moves}.
One rate for all is no equal footing, then: all plain arms but *more 4* do better at {high_rate:g}, DCMHA with four and
eight heads at {low_rate:g}, and there the differences as in H1 and H2 are larger. With the better of the two rates for
each arm, picked by these very numbers, DCMHA minus *plain* is {plain:+.3f} and minus *more* {more:+.3f}, the mean over
the three numbers of heads. {high_rate:g} is the highest rate of the search; what plain would do at more is not known.
At {high_rate:g} DCMHA also learns the seen pairs less well, so that there the differences on unseen pairs may only say
that.
"""


def all_runs(experiment: Experiment, extra: pd.DataFrame) -> pd.DataFrame:
    """The runs of the experiment's table that are not of its search, and those that were added, by name."""
    table = read_table(experiment)
    return pd.concat([table[table["stage"] == FINAL], extra]).set_index("name")


def train_missing(experiment: Experiment, rate: float, seed: int, table: Path, jobs: int) -> pd.DataFrame:
    """The table of the runs that were added, with those of this rate and seed."""
    extra = pd.read_csv(table) if table.is_file() else pd.DataFrame({"name": []})
    done, runs = all_runs(experiment, extra).index, {}
    for arm in experiment.arms:
        run = experiment.run(FINAL, arm, {KEY: rate}, seed)
        if run.name not in done:
            runs[run.name] = (arm, run)
    if runs:
        sweep = Sweep(experiment.output / f"rate={rate:g},seed={seed}", tuple(run for _, run in runs.values()), jobs)
        with console(f"rate {rate:g}, seed {seed}") as progress:
            rows = run_sweep(sweep, progress=progress)
        rows = rows[rows["status"] == "done"]
        rows.insert(0, "arm", [runs[name][0] for name in rows["name"]])
        rows = rows[["name", "arm", KEY, "recipe.seed", *experiment.measures, "loss"]]
        extra = rows if not len(extra) else pd.concat([extra, rows], ignore_index=True)
        extra.to_csv(table, index=False)
    return extra


def at_rate(experiment: Experiment, rate: float, runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """{measure: [seed, arm]} at a rate; empty before all runs are there."""
    names = [experiment.run(FINAL, arm, {KEY: rate}, seed).name for arm in experiment.arms for seed in experiment.seeds]
    if not set(names) <= set(runs.index):
        return {}
    rows = runs.loc[names]
    return {each: rows.pivot_table(index="recipe.seed", columns="arm", values=each) for each in experiment.measures}


def summary(extra: pd.DataFrame, experiment: Experiment) -> str:
    """The tables, as Markdown: for every rate the arms, and the differences that the hypotheses are about.

    Raises:
        UserError: runs are missing.
    """
    told, runs, unseen = [], all_runs(experiment, extra), {}
    for rate in RATES:
        values = at_rate(experiment, rate, runs)
        if not values:
            raise UserError(f"Runs at {rate:g} are missing; run it again.")
        unseen[rate] = values[next(iter(experiment.measures))].mean()
        body = [[arm, *(f"{each[arm].mean():.3f}" for each in values.values())] for arm in experiment.arms]
        means = markdown_table(["arm", *experiment.measures.values()], body)
        apart = "\n".join(f"- as in {name}: {each}" for name, each in differences(experiment, values).items())
        told.append(f"At {rate:g}, means over {len(experiment.seeds)} seeds:\n\n{means}\n\n{apart}")
    high, low = RATES
    change, best = unseen[low] - unseen[high], pd.concat(unseen, axis=1).max(axis=1)
    mean = {kind: best[best.index.str.startswith(kind)].mean() for kind in ("plain", "more", "DCMHA")}
    return TEXT.format(
        tables="\n\n".join(told),
        low=" and ".join(f"{unseen[rate]['more 4']:.3f} at {rate:g}" for rate in RATES),
        moves=", ".join(f"*{arm}* {change[arm]:+.3f}" for arm in experiment.arms),
        high_rate=high,
        low_rate=low,
        plain=mean["DCMHA"] - mean["plain"],
        more=mean["DCMHA"] - mean["more"],
    )


def main(
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    table: Annotated[Path | None, typer.Option(help="The table of these runs; in the folder by default.")] = None,
) -> None:
    """Train the runs that are missing, and print the tables."""
    experiment, table = read_experiment(HERE), table or HERE / TABLE
    for rate in RATES:
        for seed in experiment.seeds:
            extra = train_missing(experiment, rate, seed, table, jobs)
    text = summary(extra, experiment)
    (table.parent / TEXT_FILE).write_text(text, encoding="utf-8")
    typer.echo(text)


if __name__ == "__main__":
    typer.run(main)
