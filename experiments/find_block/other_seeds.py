"""What of the differences came again with other seeds, by the rule of the protocol (*With other seeds*).

    python experiments/find_block/other_seeds.py

reads results.csv and replication.csv and prints a table, which is also at the end of the experiment's page
(more-other-seeds.md).
"""

from __future__ import annotations

from pathlib import Path

from dcinterp.analysis.training.compare_arms import ArmComparison
from dcinterp.evidence.intervals import interval_text
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import print_text
from dcinterp.evidence.verdicts import comparison, family_level, replication, side_of_zero
from dcinterp.support.errors import UserError
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import REPLICATION, Hypothesis
from dcinterp.train.control.experiment_file import read_experiment

HERE = Path(__file__).parent
TEXT_FILE = "more-other-seeds.md"
ADDED = Hypothesis(name="H5", arms=("differential",), baselines=("plain",))
"""Asked by the protocol of the other seeds, after the first ones had shown it."""

TEXT = """## What came again

The hypotheses, and H5, which the first seeds had suggested and nobody had asked, over the first ten seeds at 95 % and
over ten others at {level:.0%}, as they are {count} tests (the line above that corrects for four is not the rule here).
*came again*: the second interval lies on that side of zero on which the first one lay, which for H2 and H3 is below. H1
was open and H5 unasked, so they are only called above zero, below zero or not shown. *did not come again* and *not
shown* do not show that there is no difference.

    python experiments/find_block/other_seeds.py

{table}
"""


def row_of(hypothesis: Hypothesis, first: ArmComparison, second: ArmComparison, level: float) -> list[str]:
    """The line of one hypothesis."""
    before, now = (
        first.between(hypothesis.arms, hypothesis.baselines),
        second.between(hypothesis.arms, hypothesis.baselines, level),
    )
    was, is_now = side_of_zero(*before[1:]), side_of_zero(*now[1:])
    if hypothesis is ADDED or not was:
        says = {1: "above zero", -1: "below zero", 0: "not shown"}[is_now]
    else:
        says = "came again" if is_now == was else "the other sign" if is_now else "did not come again"
    return [
        f"{hypothesis.name}: {hypothesis.difference}",
        interval_text(*before, sign="+"),
        interval_text(*now, sign="+"),
        says,
    ]


def summary() -> str:
    """The table, as Markdown.

    Raises:
        UserError: the runs of the other seeds are not all there.
    """
    experiment = read_experiment(HERE)
    again = replication(experiment)
    second = None if again is None else comparison(again, None)
    if second is None or len(second.seeds) < second.planned:
        raise UserError(f"{REPLICATION} has not all its seeds yet: `dcinterp experiment run` as in protocol.md.")
    first, hypotheses = comparison(experiment, None), [*experiment.hypotheses, ADDED]
    level = family_level(len(hypotheses))
    rows = [row_of(each, first, second, level) for each in hypotheses]
    head = ["difference", "seeds 0 to 9 [95 %]", f"seeds 10 to 19 [{level:.0%}]", "with other seeds"]
    return TEXT.format(level=level, count=len(hypotheses), table=markdown_table(head, rows))


def main() -> None:
    """Write the table and print it."""
    print_text(summary(), HERE / TEXT_FILE)


if __name__ == "__main__":
    run_script(main)
