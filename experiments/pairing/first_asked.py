"""How the models of the experiment answer where a relation is asked about for the first time in its document.

    python experiments/pairing/first_asked.py

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
first_asked.csv of this folder, and prints the table, which is also at the end of the page (more-first-asked.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from dcinterp.evidence.intervals import differences
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import (
    RunsTable,
    open_trained,
    print_measured,
    right_answers,
    trained_models,
    with_all_arms,
)
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment
from dcinterp.train.data.batches import NOT_SCORED
from dcinterp.train.data.puzzles.recombination import FACTS

HERE = Path(__file__).parent
TABLE, TEXT_FILE, DOCUMENTS = "first_asked.csv", "more-first-asked.md", 256
PART, ASKINGS = "held-out", 4
RELATIONS = slice(1 + FACTS + 1, None, 4)
ANSWERS = slice(1 + FACTS + 3, None, 4)

TEXT = """## By how often a relation was asked about before

A document of pairs never seen asks about each fact once with either of two relations. So an answer that was said after
a relation does not come again after it, and who takes, of the two facts that a key names, one whose answer has not been
said after this relation, is right more often at every asking (`floors.py`), without the word for the half. Where a
relation is asked about for the first time this does not help; {documents} documents have two such questions each. That
was pointed out by a reader of the protocol when all results were known; intervals are each by itself, and none is a
verdict.

    python experiments/pairing/first_asked.py{options}

Mean share of right answers on pairs never seen, over seeds {first} to {last} (no others were asked this), by how
many-th asking of its relation a question is:

{table}

At the first asking:

{differences}
"""


def by_asking(rows: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The documents with labels of the first, second, ... question about a relation alone."""
    relations, found = rows["input_ids"][:, RELATIONS], []
    same = relations[:, :, None] == relations[:, None]
    earlier = same.tril(-1).sum(-1)  # [document, question]: earlier questions about the relation
    for asking in range(ASKINGS):
        labels = torch.full_like(rows["labels"], NOT_SCORED)
        labels[:, ANSWERS] = rows["labels"][:, ANSWERS].where(earlier == asking, NOT_SCORED)
        found.append({"input_ids": rows["input_ids"], "labels": labels})
    return found


def measure(experiment: Experiment, arm: str, model: Path) -> list[dict[str, Any]]:
    """One row: the share of right answers on pairs never seen, by the number of the asking."""
    bridge, source = open_trained(experiment, arm, model)
    asked = by_asking(source.held_out(PART, DOCUMENTS))
    return [{f"asking {n}": round(right_answers(bridge, each), 5) for n, each in enumerate(asked, start=1)}]


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """Means of the arms by asking, and the differences of H1 and H2 at the first, as Markdown.

    options: of the command that makes it again.
    """
    primary = next(iter(experiment.measures))
    rows = with_all_arms(rows, experiment)
    columns = [f"asking {n}" for n in range(1, ASKINGS + 1)]
    means = rows.groupby("arm")[columns].mean()
    values = rows.pivot_table(index="seed", columns="arm", values=columns[0])[list(experiment.arms)]
    apart = differences(experiment, {primary: values})
    return TEXT.format(
        documents=DOCUMENTS,
        options=options,
        first=values.index.min(),
        last=values.index.max(),
        table=markdown_table(
            ["arm", *columns], [[arm, *(f"{means.loc[arm, each]:.3f}" for each in columns)] for arm in experiment.arms]
        ),
        differences="\n".join(f"- as in {name}: {each} over {len(values)} seeds" for name, each in apart.items()),
    )


def main(table: RunsTable = None) -> None:
    """Measure the models that are missing, and print the table."""
    print_measured(trained_models(HERE, HERE, table), TABLE, TEXT_FILE, measure, summary)


if __name__ == "__main__":
    run_script(main)
