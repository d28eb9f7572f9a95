"""What each arm is worth with two layers (`experiments/parts`) and with four, side by side.

    python experiments/parts_four_layers/both_sizes.py

reads the two tables of runs and prints the differences from plain, which are also at the end of the experiment's page
(more.md).
"""

from __future__ import annotations

from pathlib import Path

from scipy.stats import spearmanr

from dcinterp.analysis.training.compare_arms import ArmComparison, compare_arms
from dcinterp.evidence.intervals import difference_text
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import print_text
from dcinterp.support.text import markdown_table

HERE = Path(__file__).parent
TEXT_FILE = "more.md"

TEXT = """## Beside two layers

Each arm minus *{baseline}*, in bits a byte (below zero is better), with two layers (`parts`) and with four, each in
the first five seeds. The sizes also differ in the length of a row, in how many rows are a step, and in the rates
tried. Nothing is concluded from one row of this table. The orders of the {composing} arms that compose, by
these differences, have a Spearman correlation of {alike:.2f}.

    python experiments/parts_four_layers/both_sizes.py

{table}
"""


def alike(two: ArmComparison, four: ArmComparison, arms: list[str]) -> float:
    """Spearman's correlation, over arms, of the differences from the baseline at two sizes."""
    differences = [[float(each.difference[each.arms.index(arm)]) for arm in arms] for each in (two, four)]
    return float(spearmanr(*differences).statistic)


def summary(two: ArmComparison, four: ArmComparison) -> str:
    """The differences of all arms but the baseline at both sizes, and how alike their order is, as Markdown."""
    others = [arm for arm in four.arms if arm != four.baseline]
    rows = [[arm, difference_text(two, arm), difference_text(four, arm)] for arm in others]
    composing = [arm for arm in others if not arm.startswith(four.baseline)]
    return TEXT.format(
        baseline=four.baseline,
        composing=len(composing),
        alike=alike(two, four, composing),
        table=markdown_table(["arm", "two layers", "four layers"], rows),
    )


def main() -> None:
    """Print the table, and keep it for the page."""
    text = summary(compare_arms(str(HERE.parent / "parts")), compare_arms(str(HERE)))
    print_text(text, HERE / TEXT_FILE)


if __name__ == "__main__":
    run_script(main)
