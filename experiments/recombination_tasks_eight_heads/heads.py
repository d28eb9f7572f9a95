"""DCMHA minus plain wider on the tasks left out, with two, four and eight heads side by side, and over all their seeds.

    python experiments/recombination_tasks_eight_heads/heads.py

reads the tables of three experiments and prints a table, which is also at the end of the page of this one
(more-heads.md).
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import typer

from dcinterp.analysis.training.compare_arms import compare_arms
from dcinterp.bench.experiment_page import share_difference
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import read_experiment

HERE = Path(__file__).parent
TEXT_FILE = "more-heads.md"
EXPERIMENTS = {2: "recombination_tasks_two_heads", 4: "recombination_tasks", 8: "recombination_tasks_eight_heads"}
ARM, BASELINE = "DCMHA", "plain wider"

TEXT = """## With two, four and eight heads

{arm} minus *{baseline}* in the experiments on these tasks, each with its 95 % interval over seeds. A baseline has as
many parameters and FLOPs as {arm} of its number of heads, or more, so their MLPs differ. Heads are 64 wide together, so
their widths differ, and seeds do too: no trend is read from the rows. *all* is over all seeds; those of two and four
heads were known when it was announced, so it is no test.

    python experiments/{folder}/heads.py

{table}
"""


def differences_of(name: str) -> dict[str, pd.DataFrame]:
    """{measure: [seed, arm]} of the two arms in an experiment, where both are there."""
    experiment = read_experiment(HERE.parent / name)
    found = {}
    for measure in experiment.measures:
        compared = compare_arms(str(experiment.folder), measure=measure, baseline=BASELINE)
        found[measure] = pd.DataFrame(compared.values.T.numpy(), compared.seeds, compared.arms)[[BASELINE, ARM]]
    return found


def summary() -> str:
    """The table, as Markdown."""
    values = {heads: differences_of(name) for heads, name in EXPERIMENTS.items()}
    measures = read_experiment(HERE).measures
    together = {measure: pd.concat([each[measure] for each in values.values()]) for measure in measures}
    rows = [*((str(heads), each) for heads, each in values.items()), ("all", together)]
    lines = [
        [heads, str(len(each[next(iter(measures))])), *(share_difference(each[m], [ARM], [BASELINE]) for m in measures)]
        for heads, each in rows
    ]
    table = markdown_table(["heads", "seeds", *measures.values()], lines)
    return TEXT.format(arm=ARM, baseline=BASELINE, folder=HERE.name, table=table)


def main() -> None:
    """Write the table and print it."""
    text = summary()
    (HERE / TEXT_FILE).write_text(text, encoding="utf-8")
    typer.echo(text)


if __name__ == "__main__":
    typer.run(main)
