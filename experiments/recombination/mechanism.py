"""What composition does in the trained models of an experiment on a puzzle: accuracy without each part of it, by seed.

    python experiments/recombination/mechanism.py
    python experiments/recombination/mechanism.py --folder experiments/compositional_recall

reads the models of the runs (so the runs must be there, not only their table), adds the seeds that are missing to
mechanism.csv of that folder, and prints the table over seeds, which is also the end of the experiment's page (more.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from dcinterp.analysis.intervention.branch_ablation import default_parts, hooks_of
from dcinterp.evidence.intervals import mean_text
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import (
    RunsFolder,
    RunsTable,
    open_trained,
    print_measured,
    right_answers,
    trained_models,
)
from dcinterp.mechanism.ablation import replacement
from dcinterp.train.config.recipe import Phase
from dcinterp.train.control.experiment import Experiment
from dcinterp.train.data.batches import Draw

HERE = Path(__file__).parent
TABLE, DOCUMENTS = "mechanism.csv", 256
ARM, KINDS = "DCMHA", ("mean", "zero")
REFERENCE, REFERENCE_SEED = 128, 1_000_003
"""Documents that the means are taken over, of the part "seen" and drawn by a seed of their own. A mean is one map over
heads for all positions: composition that does not depend on the token any more."""


TEXT = """## What composition does in the {arm} models

Changes of accuracy where a part of the composition is replaced, in the table's models of {seeds} seeds, whether or not
they learnt the task: intact they have {least:.2f} to {most:.2f} on `{by}`, which is new documents of the kind that
training draws. Brackets are 95 % intervals over seeds. *Mean* is the part's map over heads, averaged over tokens and
documents: composition that no longer depends on the token. The measurement describes, and no hypothesis hangs on it:

    python experiments/recombination/mechanism.py{options}

{table}

The branch whose replacement costs most on `{by}`, of {seeds} seeds: by its mean {mean}; by zero {zero}.

A model that was trained with composition may come to depend on it, also where a plain model does as well; so what a
part is worth in these models does not say that composition is needed.
"""


def measure(experiment: Experiment, _arm: str, model: Path) -> list[dict[str, Any]]:
    """A row for every part of the composition, kind of ablation and part of the puzzle."""
    bridge, source = open_trained(experiment, ARM, model)
    scored = {part: source.held_out(part, DOCUMENTS) for part in source.puzzle.PARTS}
    others = source.batch(Draw(REFERENCE_SEED, 0, Phase(source="puzzle", batch_size=REFERENCE)))["input_ids"]
    rows = [{"part": "intact", "kind": ""} | accuracies(bridge, scored, [])]
    for kind in KINDS:
        for part in default_parts(bridge):
            made = replacement(bridge, hooks_of(bridge, part), kind, [ids[None] for ids in others], 0)
            rows.append({"part": part, "kind": kind} | accuracies(bridge, scored, made.hooks()))
    return rows


def accuracies(bridge: Any, scored: dict[str, dict[str, torch.Tensor]], hooks: Sequence[Any]) -> dict[str, float]:
    """{part of the puzzle: share of right answers}."""
    with bridge.hooks(fwd_hooks=list(hooks)):
        return {part: right_answers(bridge, rows) for part, rows in scored.items()}


def summary(rows: pd.DataFrame, experiment: Experiment | None = None, options: str = "") -> str:
    """Means over seeds of the change from the intact model, with 95 % intervals, as Markdown.

    experiment: what all summaries are given; nothing of it is needed here. options: of the command that makes it again.
    """
    parts = [column for column in rows if column not in ("arm", "seed", "part", "kind")]
    intact = rows[rows["part"] == "intact"].set_index("seed")
    lines = [f"| without | by | {' | '.join(parts)} |", "|---" * (2 + len(parts)) + "|"]
    for (part, kind), group in rows[rows["part"] != "intact"].groupby(["part", "kind"], sort=False):
        cells = []
        for each in parts:
            changes = torch.tensor((group.set_index("seed")[each] - intact[each]).to_numpy())
            cells.append(mean_text(changes))
        lines.append(f"| {part} | {kind} | {' | '.join(cells)} |")
    found = {"seeds": len(intact), "table": "\n".join(lines), "by": parts[0]}
    found |= {"least": intact[parts[0]].min(), "most": intact[parts[0]].max()}
    return TEXT.format(arm=ARM, options=options, **found, **{kind: costliest(rows, kind, parts[0]) for kind in KINDS})


def costliest(rows: pd.DataFrame, kind: str, by: str) -> str:
    """The branches that cost most in a seed, with their numbers of seeds and the range of what they cost."""
    branches = rows[(rows["kind"] == kind) & rows["part"].str.contains(".", regex=False)]
    least = branches.groupby("seed")[by].min()
    costs = rows[rows["part"] == "intact"].set_index("seed")[by] - least
    tied = branches[branches[by] == branches["seed"].map(least)].groupby("seed")["part"].agg("` and `".join)
    counts = ", ".join(f"`{parts}` in {count}" for parts, count in tied.value_counts().items())
    return f"{counts} ({costs.min():.3f} to {costs.max():.3f} each)"


def main(
    table: RunsTable = None,
    folder: RunsFolder = HERE,
) -> None:
    """Measure the seeds that are missing, and print the table."""
    print_measured(trained_models(folder, HERE, table), TABLE, "more.md", measure, summary, [ARM])


if __name__ == "__main__":
    run_script(main)
