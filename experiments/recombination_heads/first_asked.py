"""How models of an experiment on recombination answer questions that were not asked before in their document.

    python experiments/recombination_heads/first_asked.py
    python experiments/recombination_heads/first_asked.py --folder experiments/recombination_mlp

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
first_asked.csv of that folder, and prints the table, which is also at the end of the experiment's page
(more-first-asked.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from dcinterp.evidence.intervals import differences
from dcinterp.evidence.questions.recombination import asked_first
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import (
    RunsFolder,
    RunsTable,
    open_trained,
    print_measured,
    right_answers,
    trained_models,
    with_all_arms,
)
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment

HERE = Path(__file__).parent
TABLE, TEXT_FILE, DOCUMENTS = "first_asked.csv", "more-first-asked.md", 256

TEXT = """## Without questions that were asked before

Where a question comes again in its document, its answer stands there, and copying it could pass for recombination.
Here the same models are asked the same {documents} documents, and only questions count whose relation and fact were
not asked before: the share of these that is right, on pairs never seen together. This was announced without a
verdict.

    python experiments/recombination_heads/first_asked.py{options}

{table}

{differences}
"""


def measure(experiment: Experiment, arm: str, model: Path) -> list[dict[str, Any]]:
    """One row: the share of right answers of every part, of questions asked for the first time."""
    bridge, source = open_trained(experiment, arm, model)
    parts = {part: source.held_out(part, DOCUMENTS) for part in source.puzzle.PARTS}
    return [{part: round(right_answers(bridge, asked_first(rows)), 5) for part, rows in parts.items()}]


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """Means of the arms, and the differences that the hypotheses on pairs never seen are about, as Markdown.

    options: of the command that makes it again.
    """
    rows, primary = with_all_arms(rows, experiment), next(iter(experiment.measures))
    values = rows.pivot_table(index="seed", columns="arm", values=primary.split()[-1])[list(experiment.arms)]
    apart = differences(experiment, {primary: values})
    return TEXT.format(
        documents=DOCUMENTS,
        options=options,
        table=markdown_table(["arm", "mean"], [[arm, f"{values[arm].mean():.3f}"] for arm in experiment.arms]),
        differences="\n".join(f"- as in {name}: {each} over {len(values)} seeds" for name, each in apart.items()),
    )


def main(
    table: RunsTable = None,
    folder: RunsFolder = HERE,
) -> None:
    """Measure the models that are missing, and print the table."""
    print_measured(trained_models(folder, HERE, table), TABLE, TEXT_FILE, measure, summary)


if __name__ == "__main__":
    run_script(main)
