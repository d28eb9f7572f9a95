"""DCMHA minus plain wider on the tasks left out, with two, four and eight heads side by side.

    python experiments/recombination_tasks_eight_heads/heads.py

reads the tables of three experiments and prints a table, which is also at the end of the page of this one
(more-heads.md).
"""

from __future__ import annotations

from pathlib import Path

import typer

from dcinterp.analysis.training.compare_arms import compare_arms
from dcinterp.bench.experiment_page import difference_text
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import read_experiment

HERE = Path(__file__).parent
TEXT_FILE = "more-heads.md"
EXPERIMENTS = {2: "recombination_tasks_two_heads", 4: "recombination_tasks", 8: "recombination_tasks_eight_heads"}
ARM, BASELINE = "DCMHA", "plain wider"

TEXT = """## With two, four and eight heads

{arm} minus *{baseline}* in the experiments on these tasks, each with its 95 % interval over seeds. A baseline has as
many parameters and FLOPs as {arm} of its number of heads, or more. Heads are 64 wide together, so their widths differ,
and seeds do too: nothing is pooled and no trend is read. Two and four heads were known when eight were asked.

    python experiments/{folder}/heads.py

{table}
"""


def summary() -> str:
    """The table, as Markdown."""
    lines, measures = [], read_experiment(HERE).measures
    for heads, name in EXPERIMENTS.items():
        found = [compare_arms(str(HERE.parent / name), measure=each, baseline=BASELINE) for each in measures]
        arm, baseline = (float(found[0].parameters[found[0].arms.index(each)]) for each in (ARM, BASELINE))
        apart = [difference_text(each, ARM) for each in found]
        lines.append([str(heads), str(len(found[0].seeds)), f"{baseline / arm - 1:.1%}", *apart])
    table = markdown_table(["heads", "seeds", "parameters more than DCMHA", *measures.values()], lines)
    return TEXT.format(arm=ARM, baseline=BASELINE, folder=HERE.name, table=table)


def main() -> None:
    """Write the table and print it."""
    text = summary()
    (HERE / TEXT_FILE).write_text(text, encoding="utf-8")
    typer.echo(text)


if __name__ == "__main__":
    typer.run(main)
