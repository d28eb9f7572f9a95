"""Whether text, code and machine still give what `experiments/windows` found: two of its runs, trained again.

    python experiments/parts_four_layers/again.py

trains *plain* and *all* of seed 20, two minutes each (what is trained is not trained again), and prints their held-out
bits a byte beside the rows that the table here has from there.
"""

from __future__ import annotations

from pathlib import Path

import typer

from dcinterp.support.progress import console
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import FINAL, read_experiment, read_table
from dcinterp.train.control.sweep import Sweep, run_sweep

HERE = Path(__file__).parent
ARMS, SEED, MOST, BITS = ("plain", "all"), 20, 0.001, "bits_per_byte"
"""MOST is how far the protocol lets them differ."""


def main() -> None:
    """Train the two, and say how far they are from their rows."""
    experiment = read_experiment(HERE)
    table = read_table(experiment).set_index("name")
    former = table[(table["stage"] == FINAL) & table["arm"].isin(ARMS) & (table["data.seed"] == SEED)]
    chosen = {row["arm"]: {key: row[key] for key in experiment.tuning_keys} for _, row in former.iterrows()}
    runs = tuple(experiment.run(FINAL, arm, chosen[arm], SEED) for arm in ARMS)
    with console("again") as progress:
        found = run_sweep(Sweep(experiment.output / "again", runs, 1), progress=progress).set_index("name")[BITS]
    rows = [(arm, former.loc[run.name, BITS], found[run.name]) for arm, run in zip(ARMS, runs, strict=True)]
    lines = [(arm, f"{old:.6f}", f"{new:.6f}", f"{abs(new - old):.1g}") for arm, old, new in rows]
    typer.echo(markdown_table(["arm", "in the table", "again", "apart"], lines))
    apart = max(abs(new - old) for _, old, new in rows)
    typer.echo(f"{'Within' if apart <= MOST else 'Beyond'} what the protocol allows, {MOST}.")


if __name__ == "__main__":
    typer.run(main)
