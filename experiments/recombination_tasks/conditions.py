"""Whether the conditions of a gain hold, number by number, as the rules on other seeds ask.

    python experiments/recombination_tasks/conditions.py --folder experiments/another --table again.csv

reads the table of the runs and by_combination.csv, and prints tables, which with --table are also at the end of the
page (more-conditions.md). It was written when the first seeds were known, before any run of the others that their rules
are about. With --seen it prints only what is on the tasks seen, which the table of the runs alone has: for seeds whose
models were lost before by_combination.py had asked them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import (
    RunsFolder,
    RunsTable,
    measured_before,
    print_text,
    trained_models,
    with_all_arms,
)
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment, Hypothesis, reported_runs

HERE = Path(__file__).parent
MEASURED, TEXT_FILE = "by_combination.csv", "more-conditions.md"
MADE_BY = "experiments/recombination_tasks/by_combination.py"
FEWEST, PART, GUESSED, ODD = 4, 0.5, 1 / 3, 0.5
FAR = 0.6
"""Of the tasks seen: models beyond it are told apart where the difference on these is described."""

TEXT = """## Conditions of a gain

Of the means over {seeds} seeds, by the table of the runs and by_combination.csv, compared before they are rounded.
*protocol.md* says what hangs on which: a condition that holds is no finding by itself. *Learnt* are the seeds in which
both arms of a difference have {at:.0%} of the tasks seen, chosen by their outcome. *There* are the combinations in
which the fact that is unlike the others is no better than a random one. Half is half of the difference on all tasks
left out, over all seeds; where that is not above zero there is no gain, and it is not asked.

    python experiments/recombination_tasks/conditions.py{options}

{table}
{seen}"""
SEEN_ONLY = """## On the tasks seen

By the table of the runs alone, as models were lost before by_combination.py had asked them.

    python experiments/recombination_tasks/conditions.py{options} --seen
{seen}"""
SEEN = """
### On the tasks seen

{arm} minus *{baseline}*, apart for the seeds in which {arm} has more than {far} of them, and the others; these are
chosen by their outcome, so nothing is concluded from them. {where}

{table}
"""


def differences(rows: pd.DataFrame, hypothesis: Hypothesis) -> pd.Series:
    """The mean of its arms minus that of its baselines on the tasks of `rows`, by seed."""
    return hypothesis.by_seed(rows.pivot_table(index="seed", columns="arm", values="right"))


def column_of(rows: pd.DataFrame, seen: pd.DataFrame, hypothesis: Hypothesis, at: float) -> list[str]:
    """What each condition comes to for one difference, and whether it holds.

    Args:
        rows: right [arm, seed, task], of the seeds with all arms.
        seen: the share of the tasks seen [seed, arm], of these seeds.
        hypothesis: the difference.
        at: the share with which these are learnt.
    """
    arms = [*hypothesis.arms, *hypothesis.baselines]
    learnt = seen.index[(seen[arms] >= at).all(axis=1)]
    there = rows[rows["odd fact"] < ODD]
    ours = there[there["arm"].isin(hypothesis.arms)].groupby("seed")["right"].mean()
    every, apart = differences(rows, hypothesis), differences(there, hypothesis)
    gain = float(every.mean())

    def half(found: pd.Series) -> str:
        if not len(found):
            return "no such seed"
        value = float(found.mean())
        holds = "" if gain <= 0 else ", yes" if round(value - PART * gain, 9) >= 0 else ", no"
        return f"{value:+.4f}{holds}"

    def more(found: pd.Series) -> str:
        return f"{found.mean():.4f}, {'yes' if found.mean() > GUESSED else 'no'}" if len(found) else "no such seed"

    return [
        f"{len(learnt)} of {len(seen)}, {'yes' if len(learnt) >= FEWEST else 'no'}",
        f"{gain:+.4f}, {'yes' if gain > 0 else 'no'}",
        half(every[learnt]),
        half(apart),
        half(apart[learnt]),
        more(ours),
        more(ours[learnt]),
    ]


def on_seen(seen: pd.DataFrame, hypothesis: Hypothesis) -> str:
    """What a difference on the tasks seen is made of, as Markdown."""
    (arm,), (baseline,) = hypothesis.arms, hypothesis.baselines
    far = seen[arm] > FAR
    lines = []
    for words, those in ((f"{arm} above {FAR}", seen[far]), ("the others", seen[~far])):
        if len(those):
            means = [f"{those[each].mean():.4f}" for each in (arm, baseline)]
            lines.append([words, str(len(those)), *means, f"{(those[arm] - those[baseline]).mean():+.4f}"])
    listed = ", ".join(f"{seed} ({share:.3f})" for seed, share in seen.loc[far, arm].items())
    where = f"{'All' if far.all() else 'These'} have more: {listed}." if far.any() else "None has more."
    table = markdown_table(["seeds", "how many", arm, baseline, f"{arm} minus {baseline}"], lines)
    return SEEN.format(arm=arm, baseline=baseline, far=FAR, where=where, table=table)


def shares_seen(experiment: Experiment) -> pd.DataFrame:
    """The share of the tasks seen [seed, arm], of the seeds in which every arm has one."""
    runs = reported_runs(experiment)
    shares = runs.pivot_table(index="recipe.seed", columns="arm", values=experiment.solved_by)
    return shares.dropna().sort_index()


def all_on_seen(experiment: Experiment) -> str:
    """Every difference of two arms on the tasks seen, as Markdown."""
    of_solved = [each for each in experiment.hypotheses if each.measure == experiment.solved_by]
    guards = [each for each in of_solved if len(each.arms) == len(each.baselines) == 1]
    return "".join(on_seen(shares_seen(experiment), each) for each in guards)


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """The tables, as Markdown; `options` are those of the command that makes them again."""
    primary = next(iter(experiment.measures))
    asked = [each for each in experiment.hypotheses if each.measure in ("", primary)]
    rows = with_all_arms(rows, experiment)
    seen = shares_seen(experiment)
    seen = seen[seen.index.isin(rows["seed"])]
    rows = rows[rows["seed"].isin(seen.index)]
    columns = [column_of(rows, seen, each, experiment.solved_at) for each in asked]
    conditions = (
        f"learnt, at least {FEWEST} seeds",
        "all tasks left out, all seeds: above zero",
        "all tasks left out, learnt: at least half",
        "there, all seeds: at least half",
        "there, learnt: at least half",
        "the arm there, all seeds: more than 1/3",
        "the arm there, learnt: more than 1/3",
    )
    return TEXT.format(
        seeds=len(seen),
        at=experiment.solved_at,
        options=options,
        table=markdown_table(
            ["condition", *(f"{each.name}: {each.difference}" for each in asked)],
            [list(line) for line in zip(conditions, *columns, strict=True)],
        ),
        seen=all_on_seen(experiment),
    )


def main(
    table: RunsTable = None,
    folder: RunsFolder = HERE,
    seen: Annotated[bool, typer.Option("--seen", help="Only what the table of the runs has: the tasks seen.")] = False,
) -> None:
    """Print the tables, and keep them where they are of other seeds."""
    trained = trained_models(folder, HERE, table)
    if seen:
        text = SEEN_ONLY.format(options=trained.options, seen=all_on_seen(trained.experiment))
    else:
        rows = measured_before(trained, MEASURED, MADE_BY, folder, table)
        text = summary(rows, trained.experiment, trained.options)
    if table is None:
        typer.echo(text)
    else:
        print_text(text, trained.place / TEXT_FILE)


if __name__ == "__main__":
    run_script(main)
