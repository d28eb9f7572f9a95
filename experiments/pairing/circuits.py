"""Which edges carry the words of a question in the models that learnt the puzzle, seed by seed.

    python experiments/pairing/circuits.py
    python experiments/pairing/circuits.py --folder experiments/pairing_routes

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of that folder, and prints the tables over seeds, which are also at the end of the experiment's page
(more-circuits.md).
"""

from __future__ import annotations

from pathlib import Path

from dcinterp.evidence.arm_circuits import TESTED, ask_models
from dcinterp.evidence.pooled_edges import DESCRIBES
from dcinterp.evidence.questions.pairing import CHANGES, measure
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsFolder, RunsTable

HERE = Path(__file__).parent


def main(
    table: RunsTable = None,
    folder: RunsFolder = HERE,
) -> None:
    """Measure the models that are missing, and print the tables."""
    note = DESCRIBES if folder.resolve() == HERE.resolve() else TESTED
    ask_models(HERE, measure, CHANGES, table, folder, note=note)


if __name__ == "__main__":
    run_script(main)
