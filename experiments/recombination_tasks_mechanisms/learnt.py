"""Whether a gain on the tasks left out may be one of better learning, for every hypothesis, as the protocol asks.

    python experiments/recombination_tasks_mechanisms/learnt.py
    python experiments/recombination_tasks_mechanisms/learnt.py --table again.csv
    python experiments/recombination_tasks_mechanisms/learnt.py --folder experiments/another

reads the table of the runs and prints a table, which is also at the end of the page (more-learnt.md).
"""

from __future__ import annotations

from pathlib import Path

from dcinterp.analysis.training.compare_arms import ArmComparison
from dcinterp.evidence.intervals import brackets, difference_text, interval_text
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsFolder, RunsTable, print_text, trained_models
from dcinterp.evidence.verdicts import comparison, level_of_family, side_of_zero
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment, Hypothesis

HERE = Path(__file__).parent
TEXT_FILE = "more-learnt.md"
FEWEST, MOST, PART = 4, 0.02, 0.5
BESIDE = "plain wider"
"""A plain arm of more parameters; arms that no hypothesis compares with it are shown beside it."""

TEXT = """## Where both arms learnt the tasks seen

A difference on the tasks left out may be one on all tasks. So beside it stand the same difference on the tasks
seen in training, with its 95 % interval over seeds; how many seeds have both of the two arms at {at:.0%} of those
(the last row of *Each combination by itself* is of seeds in which all arms have); and both differences over these
seeds, without intervals, as the seeds are chosen by their outcome. The hypotheses are one family of {tests}: a
finding is stated only where the interval at {level:.2%} lies on that side of zero too. *alike*, of such a finding
alone: over the seeds with both learnt the difference on tasks left out is above zero and at least half of that
over all seeds, and that on tasks seen at most {most:+g}; and the interval on tasks seen does not lie above zero.
*too few*: fewer than {fewest} such seeds, so that nothing is said of joining the parts. Empty: seeds are missing.
*no finding*: the interval at {level:.2%} does not lie above zero, which is no evidence that there is no gain.

    python experiments/recombination_tasks_mechanisms/learnt.py{options}

{table}

Minus *{beside}*, which has more parameters and FLOPs, on tasks left out. There is no hypothesis, and nothing is
concluded; brackets are at 95 %.

{other}
"""


def row_of(hypothesis: Hypothesis, primary: ArmComparison, seen: ArmComparison, at: float, level: float) -> list[str]:
    """The line of one hypothesis, with its interval at `level`."""
    mean, low, high = seen.between(hypothesis.arms, hypothesis.baselines)
    both = (seen.values[[seen.arms.index(arm) for arm in (*hypothesis.arms, *hypothesis.baselines)]] >= at).all(0)
    apart = [each.by_seed(hypothesis.arms, hypothesis.baselines) for each in (primary, seen)]
    whole, (left_out, on_seen) = float(apart[0].mean()), (float(each[both].mean()) for each in apart)
    few = int(both.sum()) < FEWEST
    alike = low <= 0 and 0 < left_out >= PART * whole and on_seen <= MOST
    over = [f"{each:+.3f}" if both.any() else "" for each in (left_out, on_seen)]
    wide = primary.between(hypothesis.arms, hypothesis.baselines, level)[1:]
    says = "too few" if few else ("yes" if alike else "no") if side_of_zero(*wide) > 0 else "no finding"
    says = "" if len(primary.seeds) < primary.planned else says
    cells = [
        f"{whole:+.3f}",
        brackets(*wide, sign="+"),
        interval_text(mean, low, high, sign="+"),
        str(int(both.sum())),
        *over,
    ]
    return [f"{hypothesis.name}: {hypothesis.difference}", *cells, says]


def summary(experiment: Experiment, options: str = "") -> str:
    """The table, as Markdown; `options` are those of the command that makes it again.

    Raises:
        UserError: no run has ended yet.
    """
    primary, seen = comparison(experiment, None), comparison(experiment, experiment.solved_by)
    tests = len(experiment.hypotheses)
    level = level_of_family(experiment)
    rows = [row_of(each, primary, seen, experiment.solved_at, level) for each in experiment.hypotheses]
    learnt = ["seeds with both learnt", "on tasks left out, over these", "on tasks seen, over these", "alike"]
    head = ["difference", "on tasks left out", f"at {level:.2%}", "on tasks seen", *learnt]
    beside = comparison(experiment, None, BESIDE)
    asked = {arm for each in experiment.hypotheses if BESIDE in each.baselines for arm in each.arms}
    others = [arm for arm in beside.arms if arm not in (BESIDE, "plain") and arm not in asked]
    return TEXT.format(
        at=experiment.solved_at,
        fewest=FEWEST,
        most=MOST,
        tests=tests,
        level=level,
        options=options,
        beside=BESIDE,
        table=markdown_table(head, rows),
        other=markdown_table(
            ["arm", "mean", f"minus {BESIDE}"],
            [[arm, f"{beside.mean[beside.arms.index(arm)]:.3f}", difference_text(beside, arm)] for arm in others],
        ),
    )


def main(
    table: RunsTable = None,
    folder: RunsFolder = HERE,
) -> None:
    """Write the table and print it."""
    trained = trained_models(folder, HERE, table)
    print_text(summary(trained.experiment, trained.options), trained.place / TEXT_FILE)


if __name__ == "__main__":
    run_script(main)
