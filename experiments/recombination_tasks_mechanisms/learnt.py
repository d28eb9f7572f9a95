"""Whether a gain on the tasks left out may be one of better learning, for every hypothesis, as the protocol asks.

    python experiments/recombination_tasks_mechanisms/learnt.py

reads the table of the runs and prints a table, which is also at the end of the page (more-learnt.md).
"""

from __future__ import annotations

from pathlib import Path

import typer

from dcinterp.analysis.training.compare_arms import ArmComparison
from dcinterp.evidence.intervals import interval_text
from dcinterp.evidence.trained_models import print_text
from dcinterp.evidence.verdicts import comparison
from dcinterp.support.errors import UserError
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment, Hypothesis
from dcinterp.train.control.experiment_file import read_experiment

HERE = Path(__file__).parent
TEXT_FILE = "more-learnt.md"
FEWEST, MOST, PART = 4, 0.02, 0.5

TEXT = """## Where both arms learnt the tasks seen

A difference on the tasks left out may be one on all tasks. So beside it stand the same difference on the tasks seen in
training, with its 95 % interval over seeds; how many seeds have both arms at {at:.0%} of those; and both differences
over these seeds, without intervals, as the seeds are chosen by their outcome. *alike*: in {fewest} seeds or more both
have learnt the tasks; over these the difference on tasks left out is above zero and at least half of that over all
seeds, and that on tasks seen at most {most:+g}; and the interval on tasks seen does not lie above zero. Empty: seeds
are missing.

    python experiments/recombination_tasks_mechanisms/learnt.py

{table}
"""


def row_of(hypothesis: Hypothesis, primary: ArmComparison, seen: ArmComparison, at: float) -> list[str]:
    """The line of one hypothesis."""
    mean, low, high = seen.between(hypothesis.arms, hypothesis.baselines)
    both = (seen.values[[seen.arms.index(arm) for arm in (*hypothesis.arms, *hypothesis.baselines)]] >= at).all(0)
    apart = [each.by_seed(hypothesis.arms, hypothesis.baselines) for each in (primary, seen)]
    whole, (left_out, on_seen) = float(apart[0].mean()), (float(each[both].mean()) for each in apart)
    alike = low <= 0 and int(both.sum()) >= FEWEST and 0 < left_out >= PART * whole and on_seen <= MOST
    what = f"{hypothesis.name}: {' and '.join(hypothesis.arms)} minus {' and '.join(hypothesis.baselines)}"
    over = [f"{each:+.3f}" if both.any() else "" for each in (left_out, on_seen)]
    says = "" if len(primary.seeds) < primary.planned else "yes" if alike else "no"
    return [what, f"{whole:+.3f}", interval_text(mean, low, high, sign="+"), str(int(both.sum())), *over, says]


def summary(experiment: Experiment) -> str:
    """The table, as Markdown.

    Raises:
        UserError: no run has ended yet.
    """
    primary, seen = comparison(experiment, None), comparison(experiment, experiment.solved_by)
    rows = [row_of(each, primary, seen, experiment.solved_at) for each in experiment.hypotheses]
    learnt = ["seeds with both learnt", "on tasks left out, over these", "on tasks seen, over these", "alike"]
    table = markdown_table(["difference", "on tasks left out", "on tasks seen", *learnt], rows)
    return TEXT.format(at=experiment.solved_at, fewest=FEWEST, most=MOST, table=table)


def main() -> None:
    """Write the table and print it."""
    try:
        text = summary(read_experiment(HERE))
    except UserError as error:
        raise SystemExit(str(error)) from None
    print_text(text, HERE / TEXT_FILE)


if __name__ == "__main__":
    typer.run(main)
