"""What the pilot may show: how much of the tasks seen in training plain models learnt, and what the runs took.

    python experiments/recombination_tasks_mechanisms_eight_heads/pilot.py

reads pilot.csv (or `--table`). It prints nothing else of these runs.
"""

from __future__ import annotations

import math
from pathlib import Path

import typer

from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsTable
from dcinterp.support.errors import UserError
from dcinterp.train.control.experiment import DIVERGED, ENDED, read_table
from dcinterp.train.control.experiment_file import read_experiment

HERE = Path(__file__).parent
SEEN, NEEDED, BY = "accuracy 1 seen", 0.9, "plain"


def main(table: RunsTable = None) -> None:
    """Print both."""
    file = table or HERE / "pilot.csv"
    runs = read_table(read_experiment(HERE, table=file))
    own = runs[(runs["arm"] == BY) & runs["status"].isin(ENDED)]
    if len(own) != 1:
        raise UserError(f"{file} must have one run of *{BY}* that ended; protocol.md has the command.")
    diverged = own["status"].iloc[0] == DIVERGED
    learnt = math.nan if diverged else float(own[SEEN].iloc[0])
    said = "diverged" if diverged else f"has {learnt:.5f} of the tasks seen"
    typer.echo(f"*{BY}* {said}: {'enough' if learnt >= NEEDED else 'not enough'} ({NEEDED}).")
    took = runs.set_index("arm")["seconds"].dropna()
    typer.echo(f"Seconds: {', '.join(f'{arm} {seconds:.0f}' for arm, seconds in took.items())}.")


if __name__ == "__main__":
    run_script(main)
