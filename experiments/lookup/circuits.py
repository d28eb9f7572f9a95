"""Which edges carry the words of a question in the models that learnt the puzzle, seed by seed.

    python experiments/lookup/circuits.py

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of this folder, and prints the tables over seeds, which are also at the end of the experiment's page
(more-circuits.md). What becomes of M1 of the protocol stands before them (more-circuits-asked.md).
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dcinterp.evidence.arm_circuits import TABLE, TESTED, ask_models
from dcinterp.evidence.pooled_edges import share_cells, shares_of
from dcinterp.evidence.questions.lookup import CHANGES, measure
from dcinterp.evidence.script import run_script
from dcinterp.evidence.sign_verdict import sign_verdict
from dcinterp.evidence.trained_models import RunsFolder, RunsTable, measured_of, print_text
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment

HERE = Path(__file__).parent
TEXT_FILE, ARM = "more-circuits-asked.md", "DCMHA"
CHANGE, WAYS = "relation", tuple(f"L0 -> L1 {way}" for way in ("post weights", "pre weights", "query"))

TEXT = """## By which way the relation acts

{verdict}

What layer 0 writes into the queries of layer 1 and into the dynamic weights before and after its softmax, as shares of
the effect of each change; means over {arm} models [least, largest]:

    python experiments/lookup/circuits.py{options}

{table}
"""


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """The verdict on M1, and the shares beside it, as Markdown.

    options: of the command that makes it again.
    """
    part, own = experiment.solved_part, rows[rows["arm"] == ARM]
    shares = {change: shares_of(rows, ARM, part, change) for change in CHANGES}
    trained, seeds = own["seed"].nunique(), len(experiment.seeds)
    found = sign_verdict(shares[CHANGE], WAYS[0], 0.5, trained=trained, seeds=seeds)
    columns = [share_cells(each, WAYS) for each in shares.values()]
    return TEXT.format(
        verdict=f"- **M1** (in {ARM}, another *{CHANGE}*: the share of *{WAYS[0]}* minus one half): {found}",
        arm=ARM,
        options=options,
        table=markdown_table(
            ["way", *(f"another {change}" for change in CHANGES)],
            [list(row) for row in zip(WAYS, *columns, strict=True)],
        ),
    )


def main(
    table: RunsTable = None,
    folder: RunsFolder = HERE,
) -> None:
    """Measure the models that are missing, and print the tables."""
    trained = ask_models(HERE, measure, CHANGES, table, folder, note=TESTED)
    rows = measured_of(trained.experiment, trained.place / TABLE)
    print_text(summary(rows, trained.experiment, trained.options), trained.place / TEXT_FILE)


if __name__ == "__main__":
    run_script(main)
