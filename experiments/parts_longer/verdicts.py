"""Every hypothesis at 95 % and as one of a family, and in how many seeds its difference is above zero.

    python experiments/parts_longer/verdicts.py

reads the table of the runs and prints a table, which is also at the end of the experiment's page (more-verdicts.md). It
was written before the first run, but for its last sentence.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from dcinterp.evidence.intervals import interval_text
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import print_text
from dcinterp.evidence.verdicts import family_level, whole_comparison
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment
from dcinterp.train.control.experiment_file import read_experiment

HERE = Path(__file__).parent
TEXT_FILE = "more-verdicts.md"

TEXT = """## At both levels

A difference is said to be there only if its interval at {level:.0%} leaves out zero as well, as the hypotheses are
{count} tests. How many of the differences of single seeds are above zero is shown beside, and no verdict rests on it.

    python experiments/parts_longer/verdicts.py

{table}

Added when the results were known: an interval is Student's t, or the studentised bootstrap where that reaches
further, by the draws of one seed. Of {draws} seeds of these draws, so many have an interval at {level:.0%}
without zero: {kept}.
"""

DRAWS = 40


def summary(experiment: Experiment) -> str:
    """The table, as Markdown.

    Raises:
        UserError: the planned seeds have not all a run of every arm.
    """
    found = whole_comparison(experiment)
    level = family_level(len(experiment.hypotheses))
    rows = []
    for each in experiment.hypotheses:
        sides = each.arms, each.baselines
        above = int((found.by_seed(*sides) > 0).sum())
        row = [f"{each.name}: {each.difference}"]
        row += [interval_text(*found.between(*sides, at), sign="+") for at in (0.95, level)]
        rows.append([*row, f"{above} of {len(found.seeds)}"])
    head = ["difference", "95 %", f"{level:.0%}", "seeds above zero"]
    kept = ", ".join(
        f"{each.name} {leaves_out_zero(found.by_seed(each.arms, each.baselines), level)}"
        for each in experiment.hypotheses
    )
    table = markdown_table(head, rows)
    return TEXT.format(level=level, count=len(experiment.hypotheses), table=table, draws=DRAWS, kept=kept)


def leaves_out_zero(differences: Tensor, level: float) -> int:
    """By how many seeds of the bootstrap the interval of the mean lies on one side of zero."""
    ends = [bootstrap_interval(differences, level=level, seed=seed) for seed in range(DRAWS)]
    return sum(bool(low > 0 or high < 0) for low, high in ends)


def main() -> None:
    """Write the table and print it."""
    print_text(summary(read_experiment(HERE)), HERE / TEXT_FILE)


if __name__ == "__main__":
    run_script(main)
