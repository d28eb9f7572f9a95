"""Which edges of the solved models carry what a question asks for, with and without composition, seed by seed.

    python experiments/recombination/circuits.py

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of this folder, and prints the tables over seeds, which are also at the end of the experiment's page
(more-circuits.md). `dcinterp.evidence.pooled_edges` says what is measured.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import typer

from dcinterp.evidence.arm_circuits import tables_by_arm
from dcinterp.evidence.pooled_edges import DESCRIBES, EXPLAINED, change_list
from dcinterp.evidence.recombination_questions import CHANGES, DOCUMENTS, question_shares
from dcinterp.evidence.trained_models import RunsTable, print_measured, trained_models
from dcinterp.train.control.experiment import Experiment

HERE = Path(__file__).parent
TABLE, TEXT_FILE = "circuits.csv", "more-circuits.md"
ARMS = ("DCMHA", "plain")

TEXT = """## Which edges carry the question in the models that learnt it

{intro}

    python experiments/recombination/circuits.py{options}

{changes}

{arms}

None of these models has an MLP; composition may do here what an MLP would do in its place.
"""

OWN = "The models are those trained again by the kernel of today: "
INTRO = (
    "{which} reach {at:.0%} on `{seen}`. Only these are "
    "looked at, so an arm that learnt it less often is seen by its better models. They are asked {documents} "
    "documents that training did not read, each with one question. {explained} *L0 post kg* is the branch of the "
    "key's gates after the softmax in layer 0; *weights* are the dynamic weights of a stage of composition, made "
    "from the residual stream; *skip* is a head's own pattern, all that a head without composition has."
)


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """The tables over seeds of every arm, as Markdown.

    options: of the command that makes it again.
    """
    counts, arms = tables_by_arm(rows, list(CHANGES))
    return TEXT.format(
        options=options,
        intro=INTRO.format(
            which=counts if options else OWN + counts,
            at=experiment.solved_at,
            seen=experiment.solved_part,
            documents=DOCUMENTS,
            explained=f"{EXPLAINED} {DESCRIBES}",
        ),
        changes=change_list(CHANGES),
        arms=arms,
    )


def main(table: RunsTable = None) -> None:
    """Measure the models that are missing, and print the tables."""
    print_measured(trained_models(HERE, HERE, table), TABLE, TEXT_FILE, question_shares, summary, ARMS)


if __name__ == "__main__":
    typer.run(main)
