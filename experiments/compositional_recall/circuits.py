"""Which edges carry the two parts of a key in the models that learnt the task, seed by seed.

    python experiments/compositional_recall/circuits.py

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of this folder, and prints the tables over seeds, which are also at the end of the experiment's page
(more-circuits.md).
"""

from __future__ import annotations

from pathlib import Path

from dcinterp.evidence.arm_circuits import ask_models
from dcinterp.evidence.questions.compositional_recall import CHANGES, measure
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsTable

HERE = Path(__file__).parent


def main(table: RunsTable = None) -> None:
    """Measure the models that are missing, and print the tables."""
    ask_models(HERE, measure, CHANGES, table)


if __name__ == "__main__":
    run_script(main)
