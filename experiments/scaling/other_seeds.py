"""The multiplier at all losses and the differences of all sizes in the repetition with other seeds.

    python experiments/scaling/other_seeds.py
    python experiments/scaling/other_seeds.py --folder experiments/scaling_larger

prints what the page of the experiment has of its first seeds, also to replication/more.md, which stands at the end of
the page. The hypotheses have their verdicts in its section "With other seeds"; nothing here is one.
"""

from __future__ import annotations

from pathlib import Path

from dcinterp.evidence.compute_section import TITLE, compute_text
from dcinterp.evidence.multiplier import fit_of
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsFolder, print_text
from dcinterp.evidence.verdicts import required_replication

HERE = Path(__file__).parent


def main(folder: RunsFolder = HERE) -> None:
    """Print the section and write it."""
    again = required_replication(folder)
    place = again.replication_folder
    place.mkdir(exist_ok=True)
    print_text(f"{TITLE}\n\n{compute_text(again, fit_of(again))}", place / "more.md")


if __name__ == "__main__":
    run_script(main)
