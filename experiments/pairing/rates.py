"""Whether what the experiment found hangs on the rates that its search chose: all arms again, at one rate for all.

    python experiments/pairing/rates.py --jobs 2

trains the runs of the reported seeds that are missing (half a minute each; those at the rate that the search chose are
in the experiment's table already), adds them to rates.csv of this folder, and prints the tables, which are also at the
end of the experiment's page (more-rates.md). It resumes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from dcinterp.evidence.one_rate import all_runs, at_rate, tables_of, train_all
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import print_text
from dcinterp.train.control.experiment import Experiment
from dcinterp.train.control.experiment_file import read_experiment

HERE = Path(__file__).parent
TABLE, TEXT_FILE = "rates.csv", "more-rates.md"
RATE = 2.0e-3
"""The middle of the search."""

TEXT = """## At one rate for all arms

H1 is supported by a hair in seeds 200 to 209, where the search gave plain the lowest rate tried. With their results
known, the same seeds of every arm were trained at {rate:g}, the middle of the search:

    python experiments/pairing/rates.py --jobs 2

{tables}

The runs of *plain more* are those of the verdicts on seeds 200 to 209. Intervals are each by itself, and none is a
verdict.
"""


def summary(extra: pd.DataFrame, experiment: Experiment) -> str:
    """The arms at the rate, and the differences that the hypotheses are about, as Markdown.

    Raises:
        UserError: runs are missing.
    """
    values = at_rate(experiment, RATE, all_runs(experiment, extra))
    return TEXT.format(rate=RATE, tables=tables_of(experiment, values))


def main(
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    table: Annotated[Path | None, typer.Option(help="The table of these runs; in the folder by default.")] = None,
) -> None:
    """Train the runs that are missing, and print the table."""
    experiment, table = read_experiment(HERE), table or HERE / TABLE
    print_text(summary(train_all(experiment, [RATE], table, jobs), experiment), table.parent / TEXT_FILE)


if __name__ == "__main__":
    run_script(main)
