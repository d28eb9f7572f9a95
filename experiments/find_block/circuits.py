"""Which edges carry the two letters of a question in the multi-token models that find the block, seed by seed.

    python experiments/find_block/circuits.py

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of this folder, and prints the tables over seeds, which are also at the end of the experiment's page
(more-circuits.md). `dcinterp.evidence.pooled_edges` says what is measured.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dcinterp.evidence.arm_circuits import DOCUMENTS, TABLE, TEXT_FILE
from dcinterp.evidence.pooled_edges import DESCRIBES, EXPLAINED, arm_tables, change_list, with_shares
from dcinterp.evidence.questions.find_block import CHANGES, measure
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsTable, print_measured, trained_models
from dcinterp.train.control.experiment import Experiment

HERE = Path(__file__).parent
ARM = "multi-token"
TEXT = """## Which edges carry the question in the multi-token models

{solved} of {trained} seeds reach {at:.0%}. Those are asked the first question of {documents} documents that training
did not read, in which each of the changes below can be made. {explained} *kq* is the convolution over queries and keys,
without the place where a pair reads itself; that, and the map over heads, is *static*.

    python experiments/find_block/circuits.py{options}

{changes}

{tables}
"""


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """The tables over seeds, as Markdown.

    options: of the command that makes it again.
    """
    solved = with_shares(rows)
    return TEXT.format(
        options=options,
        solved=solved["seed"].nunique(),
        trained=rows["seed"].nunique(),
        at=experiment.solved_at,
        documents=DOCUMENTS,
        explained=f"{EXPLAINED} {DESCRIBES}",
        changes=change_list(CHANGES),
        tables=arm_tables(solved, list(CHANGES)) if len(solved) else "",
    )


def main(table: RunsTable = None) -> None:
    """Measure the models that are missing, and print the tables."""
    print_measured(trained_models(HERE, HERE, table), TABLE, TEXT_FILE, measure, summary, [ARM])


if __name__ == "__main__":
    run_script(main)
